"""The rules of the paper's claims, written out once more in plain loops over its table.

Nothing here is shared with the package: the table is a dictionary, each claim a function that
returns its verdict. Rules are those of `how_to_check` in the notes on the paper.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

SIZES = ("210M", "610M", "1B")
TASKS = ("SC", "TC", "QA", "IR")
RATES = (0.2, 0.3, 0.4, 0.5)
STEPS = (1000, 2000, 5000, 10000, 20000, 40000)
SPLITS = {12000: (3000, 6000, 9000), 22000: (5000, 11000, 17000), 42000: (10000, 21000, 32000)}
CSV = Path(__file__).parents[3] / "src/biphasic/analysis/reference/results.csv"


class Key(NamedTuple):
    table: str
    task: str
    dataset: str
    size: str
    objective: str
    rate: float | None
    clm: int
    total: int
    start: str
    continued: int


class Cell(NamedTuple):
    mean: float
    half: float


Table = dict[Key, Cell]


def read() -> Table:
    table = {}
    with CSV.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = Key(
                row["table"], row["task"], row["dataset"], row["model_size"], row["objective"],
                float(row["mask_rate"]) if row["mask_rate"] else None, int(row["clm_steps"]),
                int(row["total_steps"]), row["cpt_init"], int(row["cpt_steps"] or 0),
            )  # fmt: skip
            table[key] = Cell(float(row["mean"]), float(row["ci95"]))
    return table


def base(table: Table, size: str, rate: float | None, task: str, dataset: str = "Average") -> Cell:
    """`rate` None is CLM."""
    objective, clm = ("CLM", 42000) if rate is None else ("MLM", 0)
    return table[Key("base", task, dataset, size, objective, rate, clm, 42000, "", 0)]


def early(table: Table, objective: str, step: int, task: str) -> Cell:
    rate, clm = (0.4, 0) if objective == "MLM" else (None, step)
    return table[Key("data_efficiency", task, "Average", "610M", objective, rate, clm, step, "", 0)]


def split(table: Table, total: int, clm: int, task: str) -> Cell:
    objective = "MLM" if clm == 0 else "CLM" if clm == total else "CLM+MLM"
    rate = None if clm == total else 0.4
    return table[Key("pfs", task, "Average", "610M", objective, rate, clm, total, "", 0)]


def cpt(table: Table, start: str, steps: int, task: str) -> Cell:
    objective = "MLM" if start == "MLM" else "CLM+MLM" if steps else "CLM"
    rate = None if objective == "CLM" else 0.4
    clm = 42000 if start == "CLM" else 0
    return table[
        Key("cpt", task, "Average", "610M", objective, rate, clm, 42000 + steps, start, steps)
    ]


def above(one: Cell, other: Cell) -> bool:
    return one.mean > other.mean


def clearly(one: Cell, other: Cell) -> bool:
    """The first is above the second and their intervals do not overlap."""
    return one.mean - one.half > other.mean + other.half + 1e-9


def graded(*checks: Iterable[bool]) -> str:
    """True if all hold, partly if any does."""
    answers = [answer for check in checks for answer in check]
    return "true" if all(answers) else "partly" if any(answers) else "false"


def two_forms(strong: bool, weak: bool) -> str:
    return "true" if strong else "partly" if weak else "false"


def gap(table: Table, size: str, rate: float, task: str) -> float:
    return base(table, size, rate, task).mean - base(table, size, None, task).mean


def best_rate(table: Table, size: str, task: str, dataset: str = "Average") -> float:
    return max(RATES, key=lambda rate: base(table, size, rate, task, dataset).mean)


def datasets(table: Table, task: str) -> list[str]:
    found = {key.dataset for key in table if key.task == task}
    return sorted(found - {"Average"})


def c01(t: Table) -> str:
    pairs = [(base(t, s, 0.4, k), base(t, s, None, k)) for s in SIZES for k in TASKS]
    higher = sum(clearly(mlm, clm) for mlm, clm in pairs)
    lower = sum(clearly(clm, mlm) for mlm, clm in pairs)
    return two_forms(higher >= 8 and lower <= 1, higher > 0)


def c02(t: Table) -> str:
    clear = [
        clearly(base(t, s, r, k), base(t, s, None, k))
        for s in SIZES for r in RATES for k in ("SC", "QA")
    ]  # fmt: skip
    largest = [all(gap(t, s, 0.4, "QA") > gap(t, s, 0.4, k) for k in TASKS if k != "QA")
               for s in SIZES]  # fmt: skip
    return graded(clear, largest)


def c03(t: Table) -> str:
    gaps = [[gap(t, s, r, "SC") for s in SIZES] for r in RATES]
    return graded([g[0] < g[1] < g[2] for g in gaps])


def c04(t: Table) -> str:
    gaps = [[gap(t, s, r, "IR") for s in SIZES] for r in RATES]
    return graded([g[0] > g[1] > g[2] for g in gaps])


def c05(t: Table) -> str:
    return graded([
        not clearly(base(t, s, r, "TC"), base(t, s, None, "TC")) for s in SIZES for r in RATES
    ])  # fmt: skip


def c06(t: Table) -> str:
    clear = {r: clearly(base(t, "610M", None, "TC"), base(t, "610M", r, "TC")) for r in RATES}
    return two_forms(all(clear.values()), clear[0.4])


def c07(t: Table) -> str:
    differ = len({best_rate(t, s, k) for s in SIZES for k in TASKS}) > 1
    within = [len({best_rate(t, s, k, d) for d in datasets(t, k)}) > 1
              for s in SIZES for k in TASKS]  # fmt: skip
    return two_forms(differ and sum(within) >= 6, differ or any(within))


def c08(t: Table) -> str:
    rates = [[best_rate(t, s, k) for s in SIZES] for k in TASKS]
    strong = all(r[0] <= r[1] <= r[2] for r in rates)
    return two_forms(strong, all(r[2] >= r[0] for r in rates))


def c09(t: Table) -> str:
    rising = []
    for s in SIZES:
        means = [base(t, s, r, "IR").mean for r in RATES]
        rising.append(all(one < other for one, other in pairwise(means)))
    kept = [
        not clearly(base(t, s, 0.2, "IR", d), base(t, s, 0.5, "IR", d))
        for s in SIZES for d in datasets(t, "IR")
    ]  # fmt: skip
    return graded(rising, kept)


def c10(t: Table) -> str:
    pairs = [(base(t, "210M", 0.2, k), base(t, "210M", 0.5, k)) for k in ("TC", "QA")]
    return two_forms(all(clearly(*p) for p in pairs), all(above(*p) for p in pairs))


def c11(t: Table) -> str:
    found = []
    for s in ("610M", "1B"):
        for k in ("TC", "QA"):
            means = [base(t, s, r, k).mean for r in RATES]
            found.append(min(means[0], means[3]) > max(means[1], means[2]))
    return graded(found)


def c12(t: Table) -> str:
    means = {k: {r: base(t, "610M", r, k).mean for r in RATES} for k in TASKS}
    ranks = {r: sum(sum(o > m[r] for o in m.values()) for m in means.values()) for r in RATES}
    totals = {r: sum(m[r] for m in means.values()) for r in RATES}
    strong = all(ranks[0.4] < ranks[r] and totals[0.4] > totals[r] for r in RATES if r != 0.4)
    return two_forms(strong, all(m[0.4] > min(m.values()) for m in means.values()))


def c13(t: Table) -> str:
    order = [("210M", "610M"), ("210M", "1B"), ("610M", "1B")]
    return graded([
        all(not clearly(base(t, small, r, "TC"), base(t, large, r, "TC")) for small, large in order)
        for r in (*RATES, None)
    ])  # fmt: skip


def c14(t: Table) -> str:
    return graded([
        above(early(t, "CLM", n, k), early(t, "MLM", n, k))
        for k in ("SC", "QA") for n in STEPS if n <= 10000
    ])  # fmt: skip


def c15(t: Table) -> str:
    return graded([
        above(early(t, "CLM", n, "IR"), early(t, "MLM", n, "IR")) for n in STEPS if n <= 20000
    ])  # fmt: skip


def c16(t: Table) -> str:
    course = [above(early(t, "CLM", n, "TC"), early(t, "MLM", n, "TC")) for n in STEPS]
    return graded(course, [above(base(t, "610M", None, "TC"), base(t, "610M", 0.4, "TC"))])


def c17(t: Table) -> str:
    ahead = [clearly(early(t, "MLM", 40000, k), early(t, "CLM", 40000, k))
             for k in ("SC", "QA", "IR")]  # fmt: skip
    gains = [
        early(t, "MLM", 40000, k).mean - early(t, "MLM", 10000, k).mean
        > early(t, "CLM", 40000, k).mean - early(t, "CLM", 10000, k).mean
        for k in TASKS
    ]
    return graded(ahead, gains)


def c18(t: Table) -> str:
    return graded([
        above(split(t, total, clm, k), split(t, total, 0, k))
        for total, shares in SPLITS.items() for clm in shares for k in TASKS
    ])  # fmt: skip


def best_splits(t: Table) -> list[str]:
    """What is best at each budget on each task: a mix's place, or a pure objective."""
    found = []
    for total, shares in SPLITS.items():
        names = dict(zip((0, *shares, total), ("mlm", "25", "50", "75", "clm"), strict=True))
        best = [max(names, key=lambda clm: split(t, total, clm, k).mean) for k in TASKS]
        found += [names[clm] for clm in best]
    return found


def c19(t: Table) -> str:
    return graded([name in {"25", "50", "75"} for name in best_splits(t)])


def c20(t: Table) -> str:
    return graded([
        above(split(t, total, shares[0], k), split(t, total, 0, k))
        for total, shares in SPLITS.items() for k in TASKS
    ])  # fmt: skip


def c21(t: Table) -> str:
    return graded([
        not clearly(split(t, total, 0, k), split(t, total, shares[2], k))
        for total, shares in SPLITS.items() for k in TASKS
    ])  # fmt: skip


def c22(t: Table) -> str:
    pairs = {k: (cpt(t, "CLM", 22000, k), cpt(t, "MLM", 22000, k)) for k in TASKS}
    return graded([above(*pair) for pair in pairs.values()], [clearly(*pairs["SC"])])


def c23(t: Table) -> str:
    kept = [not clearly(cpt(t, "CLM", 0, "TC"), cpt(t, "CLM", n, "TC"))
            for n in (2000, 12000, 22000)]  # fmt: skip
    ahead = clearly(cpt(t, "CLM", 22000, "TC"), cpt(t, "MLM", 22000, "TC"))
    closed = [not clearly(cpt(t, "MLM", 22000, k), cpt(t, "CLM", 22000, k)) for k in ("QA", "IR")]
    return graded(kept, [ahead], closed)


def c24(t: Table) -> str:
    pairs = {k: (cpt(t, "CLM", 12000, k), cpt(t, "MLM", 12000, k)) for k in TASKS}
    higher = [above(*pairs[k]) for k in ("TC", "IR")]
    alike = [not clearly(*pairs[k]) and not clearly(*pairs[k][::-1]) for k in ("SC", "QA")]
    return graded(higher, alike)


def c25(t: Table) -> str:
    change = {
        (start, k): cpt(t, start, 22000, k).mean - cpt(t, start, 12000, k).mean
        for start in ("CLM", "MLM") for k in TASKS
    }  # fmt: skip
    steeper = [change["CLM", k] > change["MLM", k] for k in TASKS]
    return graded(steeper, [change["CLM", "SC"] > 0], [change["MLM", "SC"] <= 0])


def b01(t: Table) -> str:
    counts = Counter(best_splits(t))
    others = max((number for name, number in counts.items() if name != "50"), default=0)
    return two_forms(counts["50"] > others, counts["50"] >= 3)


_CODES = [*(f"C{number:02}" for number in range(1, 26)), "B01"]
RULES: dict[str, Callable[[Table], str]] = {code: globals()[code.lower()] for code in _CODES}
