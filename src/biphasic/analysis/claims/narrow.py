"""Which rows a selection means, and which factors are held equal between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from biphasic.analysis.claims.rows import REPLICATE, Level, Row, Table
from biphasic.analysis.claims.selection import (
    AVERAGE,
    EACH,
    ORDERED_FACTORS,
    Levels,
    Selection,
)

OPTIONAL_FACTORS = ("mask_rate",)
"""Factors that some models have not: such a model fits every level of the others."""
_MIX = {"objective", "clm_share", "start"}
_LENGTH = {"steps", "progress"}
_CONTINUATION = {"continued_steps", "extension"}
_CLOSE = 1e-9
_SPEAKING = {"objective", "size", "task", "model"}
"""Factors whose levels say what they are of."""
_NAMES = {
    "mask_rate": "masking rate",
    "clm_share": "share of CLM",
    "continued_steps": "continued steps",
}


@dataclass
class Notes:
    """What came to light while a check was answered."""

    bound: dict[str, None] = field(default_factory=dict)
    """What relative words stood for, such as `largest steps: 800`; an ordered set."""
    missing: dict[str, None] = field(default_factory=dict)
    """What the table lacks; an ordered set."""

    def bind(self, text: str) -> None:
        """Note what a relative word stood for."""
        self.bound.setdefault(text)

    def lack(self, text: str) -> None:
        """Note something that the table lacks."""
        self.missing.setdefault(text)


def factor_name(factor: str) -> str:
    """Name a factor for people."""
    return _NAMES.get(factor, factor)


def level_text(factor: str, level: Level | None) -> str:
    """Write a level for people."""
    if isinstance(level, bool) or not isinstance(level, int | float):
        return str(level) if level != "" else f"unnamed {factor}"
    return f"{level:,.0f}" if factor in {"steps", "continued_steps"} else f"{level:.3g}"


def held_factors(named: Collection[str]) -> tuple[str, ...]:
    """Return what must be equal between rows of which some factors are named as different.

    Some factors follow from others. The objective determines the share of CLM and, of a finished
    model, what continued training begins with; continuing changes the objective and the share.
    """
    names = set(named)
    if "model" in names:
        held = {"task", "dataset"}
    else:
        held = {"size", "mask_rate", "steps", "finished", "continued_steps", REPLICATE}
        held |= {"task", "dataset"}
        if not names & _MIX:
            held |= {"start"} if names & _CONTINUATION else _MIX
        if names & _LENGTH:
            held.discard("steps")
        if names & _CONTINUATION:
            held.discard("continued_steps")
    if "task" in names:
        held.discard("dataset")
    return tuple(sorted(held - names))


def do_agree(first: Row, second: Row, held: Iterable[str]) -> bool:
    """Tell whether two rows are equal in the held factors."""
    for factor in held:
        one, other = first.factors.get(factor), second.factors.get(factor)
        if one != other and not (factor in OPTIONAL_FACTORS and None in {one, other}):
            return False
    return True


def grouped(
    rows: Iterable[Row], held: Sequence[str]
) -> list[tuple[dict[str, Level | None], list[Row]]]:
    """Divide rows into groups that agree in the held factors.

    A row without an optional factor stands in the group of every level of the others.
    """
    optional = [factor for factor in held if factor in OPTIONAL_FACTORS]
    firm = [factor for factor in held if factor not in OPTIONAL_FACTORS]
    buckets: dict[tuple[Level | None, ...], list[Row]] = defaultdict(list)
    for row in rows:
        buckets[tuple(row.factors.get(factor) for factor in firm)].append(row)
    found = []
    for key, bucket in buckets.items():
        shared = dict(zip(firm, key, strict=True))
        if not optional:
            found.append((shared, bucket))
            continue
        (factor,) = optional
        levels = sorted({row.factors.get(factor) for row in bucket} - {None}) or [None]  # type: ignore[type-var]
        found += [
            (
                {**shared, factor: level},
                [row for row in bucket if row.factors.get(factor) in {level, None}],
            )
            for level in levels
        ]
    return found


def narrow(
    rows: Sequence[Row], selection: Selection, table: Table, notes: Notes, *, is_lenient: bool
) -> list[Row]:
    """Return the rows that a selection means.

    Positions and nearest levels are sought among the rows that all else leaves.

    Args:
        rows: To choose from.
        selection: Which.
        table: Where the order of sizes comes from.
        notes: What is found out on the way.
        is_lenient: Keep rows that have not the factor at all (their level is None).
    """
    kept = [row for row in rows if _is_state_meant(row, selection)]
    if rows and not kept:
        notes.lack("no finished models" if selection.finished else "no states on the way")
    levels = selection.levels()
    for factor, wanted in levels.items():
        if not kept:
            return []
        is_absent = _note_absent_values(kept, factor, wanted, notes)
        kept = [row for row in kept if _fits(row, factor, wanted, is_lenient=is_lenient)]
        if not kept and not is_absent:
            notes.lack(f"no {_describe_factor(factor, wanted)}")
    for factor, wanted in levels.items():
        if not kept:
            return []
        if wanted.position is None and wanted.nearest is None:
            continue
        chosen = _chosen_level(kept, factor, wanted, table, notes)
        kept = [
            row
            for row in kept
            if row.factors.get(factor) == chosen
            or (is_lenient and row.factors.get(factor, chosen) is None)
        ]
    return kept


def narrow_datasets(rows: Iterable[Row], dataset: Levels | None, notes: Notes) -> list[Row]:
    """Return the rows of the datasets that are meant: averages unless others are named."""
    names = [str(value) for value in dataset.values] if dataset else [AVERAGE]
    rows = list(rows)
    if names == [EACH]:
        return [row for row in rows if row.factors["dataset"] != AVERAGE]
    known = {row.factors["dataset"] for row in rows}
    for name in names:
        if name not in known:
            notes.lack(f"no dataset {name}")
    return [row for row in rows if row.factors["dataset"] in names]


def levels_of(rows: Iterable[Row], factor: str, table: Table) -> list[Level]:
    """Return the levels of a factor in order: that of size or number, else as they come."""
    found = dict.fromkeys(level for row in rows if (level := row.factors.get(factor)) is not None)
    if factor in ORDERED_FACTORS:
        return sorted(found, key=lambda level: table.rank(factor, level))
    return list(found)


def describe(selection: Selection) -> str:
    """Write a selection as people read it: `MLM, masking rate nearest 0.4`."""
    parts = [_describe_factor(factor, levels) for factor, levels in selection.levels().items()]
    if selection.finished is not None:
        parts.append("finished" if selection.finished else "on the way")
    return ", ".join(parts)


def _describe_factor(factor: str, levels: Levels) -> str:
    text = describe_levels(levels)
    if levels.position is not None or levels.values == (EACH,):
        return f"{text} {factor_name(factor)}"
    return text if factor in _SPEAKING else f"{factor_name(factor)} {text}"


def describe_levels(levels: Levels) -> str:
    """Write which levels are meant."""
    if levels.values:
        return " or ".join(v if isinstance(v, str) else f"{v:g}" for v in levels.values)
    if levels.position is not None:
        return levels.position
    if levels.nearest is not None:
        return f"nearest {levels.nearest:g}"
    words = {"at_least": "at least", "at_most": "at most", "above": "above", "below": "below"}
    return ", ".join(
        f"{word} {bound:g}"
        for name, word in words.items()
        if (bound := getattr(levels, name)) is not None
    )


def is_among(level: Level | None, wanted: Levels) -> bool:
    """Tell whether a level is one of those that values or bounds name."""
    if level is None:
        return False
    if wanted.values:
        return any(_is_same(level, value) for value in wanted.values)
    if not isinstance(level, int | float):
        return False
    bounds = (
        wanted.at_least is None or level >= wanted.at_least - _CLOSE,
        wanted.at_most is None or level <= wanted.at_most + _CLOSE,
        wanted.above is None or level > wanted.above + _CLOSE,
        wanted.below is None or level < wanted.below - _CLOSE,
    )
    return all(bounds)


def resolved(wanted: Levels, levels: Sequence[Level]) -> set[Level]:
    """Return which of some ordered levels are meant."""
    if not levels:
        return set()
    if wanted.position is not None:
        index = {"smallest": 0, "middle": (len(levels) - 1) // 2, "largest": -1}
        return {levels[index[wanted.position]]}
    if wanted.nearest is not None:
        numbers = [level for level in levels if isinstance(level, int | float)]
        target = wanted.nearest
        closest = min(
            numbers, key=lambda level: (round(abs(level - target), 9), level), default=None
        )
        is_far = closest is None or (
            wanted.within is not None and abs(closest - target) > wanted.within + _CLOSE
        )
        return set() if is_far or closest is None else {closest}
    return {level for level in levels if is_among(level, wanted)}


def _is_same(level: Level, value: float | str) -> bool:
    if isinstance(level, str) or isinstance(value, str):
        return str(level) == str(value)
    return abs(level - value) <= _CLOSE


def _is_state_meant(row: Row, selection: Selection) -> bool:
    return selection.finished is None or row.factors.get("finished") == selection.finished


def _fits(row: Row, factor: str, wanted: Levels, *, is_lenient: bool) -> bool:
    if factor in {"dataset", "group"}:
        return True
    level = row.factors.get(factor)
    if level is None:
        return is_lenient and factor in row.factors
    if wanted.position is not None or wanted.nearest is not None:
        return True
    return is_among(level, wanted)


def _note_absent_values(rows: Sequence[Row], factor: str, wanted: Levels, notes: Notes) -> bool:
    """Say which named values the table has not, so that no claim is true for want of them."""
    if factor in {"dataset", "group"}:
        return False
    known = {row.factors.get(factor) for row in rows} - {None}
    absent = [
        value
        for value in wanted.values
        if not any(_is_same(level, value) for level in known if level is not None)
    ]
    for value in absent:
        shown = value if isinstance(value, str) else level_text(factor, value)
        notes.lack(f"no {factor_name(factor)} {shown}")
    return bool(absent)


def _chosen_level(
    rows: Sequence[Row], factor: str, wanted: Levels, table: Table, notes: Notes
) -> Level | None:
    levels = levels_of(rows, factor, table)
    if factor == "size" and not table.has_size_order:
        notes.lack("sizes have no order: numbers of parameters are unknown")
        return None
    chosen = next(iter(resolved(wanted, levels)), None)
    if chosen is None:
        found = ", ".join(level_text(factor, level) for level in levels) or "none"
        near = "" if wanted.within is None else f" within {wanted.within:g}"
        notes.lack(f"no {_describe_factor(factor, wanted)}{near}; there is: {found}")
    elif wanted.nearest is None or f"{wanted.nearest:.3g}" != level_text(factor, chosen):
        notes.bind(f"{_describe_factor(factor, wanted)}: {level_text(factor, chosen)}")
    return chosen
