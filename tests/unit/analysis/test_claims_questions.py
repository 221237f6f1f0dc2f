"""What each question asks, how many comparisons must hold, and how wrong files are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_table import ask, model, table

from biphasic.analysis.claims import (
    Check,
    Comparison,
    Table,
    bounds,
    claims_report,
    load_claims,
    nearest,
    paper_claims,
)
from biphasic.analysis.claims.claim import body_lines
from biphasic.analysis.scores.table import ModelInfo, Scores
from biphasic.errors import ConfigError

MLM, CLM, MIX = {"objective": "MLM"}, {"objective": "CLM"}, {"objective": "CLM+MLM"}
Question = Callable[[Table], Check]


def held(scores: Scores, question: Question) -> list[bool | None]:
    (found,) = ask(scores, question).checks
    return [comparison.holds for comparison in found.comparisons]


def is_mlm_higher(table: Table) -> Check:
    return table.compare(MLM, CLM, "higher")


def pair(first: float | tuple[float, float], second: float | tuple[float, float]) -> Scores:
    return table({model("mlm"): {"SC": first}, model("clm", objective="CLM"): {"SC": second}})


@pytest.mark.parametrize(
    ("first", "second", "expect", "answer"),
    [
        ((70, 1), (69, 1), "higher", True),
        ((70, 1), (70, 1), "higher", False),
        ((70, 1), (70, 1), "not higher", True),
        ((69, 1), (70, 1), "lower", True),
        ((69, 1), (70, 1), "not lower", False),
        ((72.1, 1), (70, 1), "significantly higher", True),
        ((72, 1), (70, 1), "significantly higher", False),  # intervals that touch overlap
        ((70, 1), (72.1, 1), "significantly higher", False),
        ((70, 1), (72.1, 1), "significantly lower", True),
        ((70, 1), (72.1, 1), "significantly different", True),
        ((70, 1), (71, 1), "not significantly different", True),
        ((70, 1), (72.1, 1), "not significantly different", False),
        ((70, 1), (72.1, 1), "not significantly higher", True),
        ((72.1, 1), (70, 1), "not significantly higher", False),
        ((70, 1), (72.1, 1), "not significantly lower", False),
    ],
)
def test_relations_of_two_scores(first, second, expect, answer) -> None:
    found = held(pair(first, second), lambda table: table.compare(MLM, CLM, expect))
    assert found == [answer]


@pytest.mark.parametrize(
    ("means", "expect", "answer"),
    [
        ((1, 2, 3), "increases", True),
        ((1, 2, 2), "increases", False),
        ((1, 2, 2), "never decreases", True),
        ((1, 3, 2), "never decreases", False),
        ((3, 2, 1), "decreases", True),
        ((3, 3, 1), "never increases", True),
        ((1, 3, 2.5), "never significantly decreases", True),  # 0.5 down, intervals of 0.5
        ((3, 2.5, 1.9), "never significantly decreases", False),  # first to last: 1.1 down
        ((1, 1.5, 2.1), "never significantly increases", False),
        ((3, 1, 2), "dips in the middle", True),
        ((3, 1, 1), "dips in the middle", False),
        ((1, 3, 2), "peaks in the middle", True),
    ],
)
def test_how_scores_run_along_a_factor(means, expect, answer) -> None:
    rates = dict(zip((0.2, 0.3, 0.4), means, strict=True))
    # Rows come in another order than their levels.
    scores = table({
        model(f"mlm{rate}", mask_rate=rate): {"SC": rates[rate]} for rate in (0.4, 0.2, 0.3)
    })  # fmt: skip
    assert held(scores, lambda table: table.trend("mask_rate", expect)) == [answer]


def test_sizes_are_ordered_by_parameters() -> None:
    parameters = {"b": 1_000, "c": 2_000, "a": 3_000}
    scores = table({
        model(size, size=size, parameters=number): {"SC": number / 1000}
        for size, number in parameters.items()
    })  # fmt: skip
    assert held(scores, lambda table: table.trend("size", "increases")) == [True]
    ends = {"size": "largest"}, {"size": "smallest"}
    result = ask(scores, lambda table: table.compare(*ends, "higher"))
    assert result.lines("for") == ["SC: a 3.00 (0.50), b 1.00 (0.50): +2.00*"]


@pytest.mark.parametrize(
    ("rates", "middle"),
    [((0.2,), 0.2), ((0.2, 0.3), 0.2), ((0.2, 0.3, 0.4), 0.3), ((0.2, 0.3, 0.4, 0.5), 0.3)],
)
def test_the_middle_is_one_of_the_levels(rates, middle) -> None:
    clm = {model("clm", objective="CLM"): {"SC": 90.0}}
    scores = table({model(f"m{r}", mask_rate=r): {"SC": 100 * r} for r in rates} | clm)
    result = ask(scores, lambda table: table.compare(CLM, MLM, "higher", mask_rate="middle"))
    assert result.scope == f"size nano; masking rate {middle}; steps 100; task SC"


def test_a_difference_reports_the_missing_side() -> None:
    cells = {"SC": 70.0, "TC": 60.0}
    scores = table({model("mlm"): cells, model("clm", objective="CLM"): cells})
    for of, minus, missing in (
        (MIX, MLM, "no objective CLM+MLM"),
        (MLM, MIX, "no number for mlm - a counterpart of mlm"),
    ):
        gap = of, minus
        result = ask(scores, lambda table, gap=gap: table.varies("task", gap=gap))
        assert result.verdict == "no data"
        assert missing in result.missing


def test_what_is_not_named_is_held_equal() -> None:
    scores = table({
        model("mlm-100"): {"SC": 70.0, "TC": 80.0},
        model("clm-100", objective="CLM"): {"SC": 69.0, "TC": 81.0},
        model("mlm-900", total_steps=900, mlm_steps=900): {"SC": 60.0, "TC": 60.0},
        model("clm-900", objective="CLM", total_steps=900, clm_steps=900): {"SC": 59.0, "TC": 61.0},
        model("far", objective="CLM", size="micro"): {"SC": 99.0, "TC": 99.0},
    })  # fmt: skip
    (found,) = ask(scores, is_mlm_higher).checks
    assert [(c.text.split(" ")[0], c.text.split(", ")[1].split(" ")[0], c.holds)
            for c in found.comparisons] == [
        ("mlm-100", "clm-100", True), ("mlm-100", "clm-100", False),
        ("mlm-900", "clm-900", True), ("mlm-900", "clm-900", False),
    ]  # fmt: skip
    longest = held(scores, lambda table: table.compare(MLM, CLM, "higher", steps="largest"))
    assert longest == [True, False]


def test_shares_of_clm_are_rounded_but_a_mix_is_never_pure() -> None:
    def mix(clm: int) -> ModelInfo:
        mlm = 100 - clm
        return model(f"mix{clm}", objective="CLM+MLM", clm_steps=clm, mlm_steps=mlm)

    scores = table({
        model("mlm"): {"SC": 50.0}, mix(1): {"SC": 51.0}, mix(23): {"SC": 52.0},
        mix(99): {"SC": 53.0}, model("clm", objective="CLM"): {"SC": 54.0},
    })  # fmt: skip
    (found,) = ask(scores, lambda table: table.best("clm_share", 1)).checks
    assert found.comparisons[0].text == (
        "50.00 at 0, 51.00 at 0.05, 52.00 at 0.25, 53.00 at 0.95, 54.00 at 1"
    )


def test_intermediate_states_and_continued_models_count_only_if_named() -> None:
    early = {"total_steps": 50, "is_final": False}
    more = {"total_steps": 150, "continued_steps": 50}
    scores = table({
        model("mlm"): {"SC": 70.0},
        model("clm", objective="CLM"): {"SC": 60.0},
        model("mlm-50", **early): {"SC": 40.0},
        model("clm-50", objective="CLM", **early): {"SC": 50.0},
        model("mlm-more", start="MLM", **more): {"SC": 71.0},
        model("clm-more", objective="CLM+MLM", clm_steps=100, start="CLM", **more): {"SC": 72.0},
    })  # fmt: skip
    assert held(scores, is_mlm_higher) == [True]
    on_the_way = held(scores, lambda table: table.compare(MLM, CLM, "higher", finished=False))
    assert on_the_way == [False]
    starts, more = ({"start": "MLM"}, {"start": "CLM"}), bounds(above=0)
    continued = held(
        scores, lambda table: table.compare(*starts, "higher", continued_steps=more)
    )  # fmt: skip
    assert continued == [False]
    steps = {"continued_steps": 50}, {"continued_steps": 0}
    assert held(scores, lambda table: table.compare(*steps, "higher", start="CLM")) == [True]
    along = ask(scores, lambda table: table.trend("steps", "increases"))
    assert along.verdict == "no data", "states on the way are not named"


def test_masking_rates_are_held_equal_if_there_are_any() -> None:
    mixes = {"objective": "CLM+MLM", "clm_steps": 25, "mlm_steps": 75}
    scores = table({
        model("mlm20", mask_rate=0.2): {"SC": 60.0}, model("mlm40"): {"SC": 70.0},
        model("mix20", mask_rate=0.2, **mixes): {"SC": 61.0}, model("mix40", **mixes): {"SC": 69.0},
        model("clm", objective="CLM"): {"SC": 65.0},
    })  # fmt: skip
    # 61 against 60, 69 against 70; CLM has none and meets both.
    assert held(scores, lambda table: table.compare(MIX, MLM, "higher")) == [True, False]
    assert held(scores, lambda table: table.compare(CLM, MLM, "higher")) == [True, False]
    # At 0.2: 60, 61, 65; at 0.4: 70, 69, 65.
    assert held(scores, lambda table: table.best("clm_share", 1)) == [True, False]
    # Where both sides name it, CLM has no place.
    rates = {"mask_rate": 0.4}, {"mask_rate": 0.2}
    found = held(scores, lambda table: table.compare(*rates, "higher", mask_rate=[0.2, 0.4]))
    assert found == [True, True]


def test_differences_and_best_levels_are_looked_at() -> None:
    cells = {}
    for size, number, gap in (("pico", 1, 5.0), ("nano", 2, 3.0)):
        factors = {"size": size, "parameters": number}
        cells[model(f"{size}-clm", objective="CLM", **factors)] = {"SC": 50.0, "TC": 50.0}
        cells[model(f"{size}-20", mask_rate=0.2, **factors)] = {"SC": 50.0 + gap, "TC": 51.0}
        cells[model(f"{size}-40", **factors)] = {"SC": 50.0 + 2 * gap, "TC": 50.0 + number / 2}
    scores = table(cells)
    gap = MLM, CLM
    shrinks = ask(scores, lambda table: table.trend("size", "decreases", gap=gap, task="SC"))
    found = shrinks.checks[0].comparisons
    assert [c.text for c in found] == [
        "+5.00 at pico, +3.00 at nano",
        "+10.00 at pico, +6.00 at nano",
    ]
    most = held(scores, lambda table: table.best("task", "SC", gap=gap, mask_rate=0.4))
    assert most == [True, True]
    # SC: 0.4 at both; TC: 51 against 50.5, then 51 against 51, of which the smaller rate counts.
    for factor, varies in (("task", True), ("size", False)):
        found = held(scores, lambda table, f=factor: table.varies(f, best_level="mask_rate"))
        assert found == [varies, varies]


def test_means_and_mean_ranks_over_tasks() -> None:
    scores = table({
        model("mlm20", mask_rate=0.2): {"SC": 50.0, "TC": 50.0, "QA": 10.0},
        model("mlm30", mask_rate=0.3): {"SC": 49.0, "TC": 49.0, "QA": 40.0},
        model("mlm40"): {"SC": 48.0, "TC": 48.0, "QA": 20.0},
    })  # fmt: skip
    # Means 36.67, 46, 38.67; ranks 1 1 3, 2 2 1, 3 3 2: means 1.67, 1.67, 2.67.
    assert held(scores, lambda table: table.best("mask_rate", 0.3, across="task")) == [True]
    ranked = {"across": "task", "by": "mean rank"}
    assert held(scores, lambda table: table.best("mask_rate", [0.2, 0.3], **ranked)) == [True]
    alone = held(scores, lambda table: table.best("mask_rate", 0.3, **ranked))
    assert alone == [False], "a tie is not won"

    def is_not_worst(table: Table) -> Check:
        return table.worst("mask_rate", 0.4, is_not=True)

    assert held(scores, is_not_worst) == [False, False, True]
    tied = table({model("mlm20", mask_rate=0.2): {"SC": 50.0}, model("mlm40"): {"SC": 50.0}})
    assert held(tied, is_not_worst) == [False]
    assert held(tied, lambda table: table.best("mask_rate", 0.4)) == [False]


def test_datasets_are_averages_unless_named() -> None:
    cells = {model("mlm"): {"TC/a": 60.0, "TC/b": 80.0, "SC": 50.0},
             model("clm", objective="CLM"): {"TC/a": 70.0, "TC/b": 60.0, "SC": 50.5}}  # fmt: skip
    scores = table(cells, averaged=("TC",))
    scores = Scores(scores.source, "paper", scores.models, tuple(
        type(d)(d.name, d.task, d.metric, d.is_average) for d in scores.datasets
    ), scores.cells)  # fmt: skip
    assert held(scores, is_mlm_higher) == [False, True]  # SC: 50 < 50.5; TC: 70 > 65
    each = held(scores, lambda table: table.compare(MLM, CLM, "higher", dataset="each"))
    assert each == [False, True, False]  # TC/a, TC/b, SC
    names = ["TC/b", "TC/c"]
    named = ask(scores, lambda table: table.compare(MLM, CLM, "higher", dataset=names))
    assert named.verdict == "undecided"
    assert named.missing == "no dataset TC/c"


def test_headings_can_be_asked_for() -> None:
    scores = table({
        model("mlm", group="one"): {"SC": 70.0},
        model("clm", objective="CLM", group="one"): {"SC": 69.0},
        model("other", mask_rate=0.2, group="two"): {"SC": 1.0},
    })  # fmt: skip
    assert held(scores, is_mlm_higher) == [True, False]
    assert held(scores, lambda table: table.compare(MLM, CLM, "higher", group="one")) == [True]


def holds(counts: tuple[int, int, int], **hold: Any) -> bool | None:
    """Counts are of comparisons that hold, fail, and are unknown."""
    answers = [True] * counts[0] + [False] * counts[1] + [None] * counts[2]
    return Check(tuple(Comparison("", answer) for answer in answers), **hold).holds


@pytest.mark.parametrize(
    ("hold", "counts", "answer"),
    [
        ({}, (3, 0, 0), True),
        ({}, (3, 1, 5), False),
        ({}, (3, 0, 1), None),
        ({"at_least": 2}, (2, 3, 4), True),
        ({"at_least": 2}, (1, 3, 1), None),
        ({"at_least": 2}, (1, 3, 0), False),
        ({"at_least": 8 / 12}, (3, 1, 0), True),  # 8/12 of 4 is 2.67: 3
        ({"at_least": 8 / 12}, (2, 2, 0), False),
        ({"at_most": 1 / 12}, (1, 11, 0), True),
        ({"at_most": 1 / 12}, (1, 10, 0), False),  # of 11 it is none
        ({"at_most": 1}, (1, 3, 1), None),
        ({"at_most": 1}, (2, 0, 3), False),
    ],
)
def test_how_many_must_hold(hold, counts, answer) -> None:
    assert holds(counts, **hold) is answer


@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 3), st.sampled_from(
    [{}, {"at_least": 2}, {"at_least": 1 / 2}, {"at_most": 2}, {"at_most": 1 / 3}]
))  # fmt: skip
def test_an_answer_does_not_depend_on_unknown_comparisons(
    num_true: int, num_false: int, num_unknown: int, hold: Any
) -> None:
    found = holds((num_true, num_false, num_unknown), **hold)
    outcomes = {
        holds((num_true + more, num_false + num_unknown - more, 0), **hold)
        for more in range(num_unknown + 1)
    }
    assert found is (outcomes.pop() if len(outcomes) == 1 else None)


def test_most_often_is_more_often_than_any_other() -> None:
    def won(*winners: float | None) -> bool | None:
        found = [Comparison("", w and w == 0.5, winner=w) for w in winners]
        return Check(tuple(found), most_often="clm_share").holds

    assert won(0.5, 0.5, 0.25, 0.75) is True
    assert won(0.5, 0.5, 0.25, 0.25) is False
    assert won(0.5, 0.5, 0.25, None) is None


def test_levels_that_tests_do_not_decide_are_not_called_ties() -> None:
    def count(answer: bool | None) -> str:
        return Check((Comparison("", answer),) * 2, most_often="clm_share").count

    assert "ties" in count(False)
    assert "ties" not in count(None)


def test_a_weaker_form_decides_between_partly_and_false() -> None:
    def strong(table: Table) -> Check:
        return table.compare(MLM, CLM, "significantly higher")

    def weak(table: Table) -> Check:
        return table.compare(MLM, CLM, "higher", weaker=True)

    assert ask(pair(75, 70), strong, weak).verdict == "true"
    assert ask(pair(70.5, 70), strong, weak).verdict == "partly"
    assert ask(pair(70.5, 70), strong).verdict == "false"
    assert ask(pair(69, 70), strong, weak).verdict == "false"
    lower = partial(Table.compare, first=MLM, second=CLM, expect="lower", weaker=True)
    assert ask(pair(70.5, 70), strong, weak, lower).verdict == "false", "all weaker forms hold"


def test_a_claim_may_have_custom_checks_on_the_tidy_table() -> None:
    def question(table: Table) -> Check:
        best = {
            task: max(row.mean for row in table.rows() if row.task == task and row.is_scored)
            for task in ("SC", "TC")
        }
        is_above = {task: np.float64(mean) > 69 for task, mean in best.items()}  # as of pandas
        return Check(tuple(Comparison(f"task {task}", one) for task, one in is_above.items()))

    scores = table({model("mlm"): {"SC": 70.0, "TC": 60.0}, model("mlm20", mask_rate=0.2): {}})
    result = ask(scores, question)
    assert (result.verdict, result.numbers) == ("partly", "1 of 2 hold (all needed)")
    assert [one.holds is True for one in result.checks[0].comparisons] == [True, False]
    assert (result.lines("for"), result.lines("against")) == (["task SC"], ["task TC"])


GOOD = """\
from biphasic.analysis.claims import bounds, claim

MLM, CLM = {"objective": "MLM"}, {"objective": "CLM"}


@claim("mine", "A sentence.")
def mine(table):
    yield table.compare(MLM, CLM, "higher")
"""


def written(folder: Path, text: str, name: str = "mine.py") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_claims_of_one_name_all_count_and_are_in_order(tmp_path) -> None:
    again = GOOD[GOOD.index("@claim") :].replace('"mine"', '"b"')
    claims = load_claims(written(tmp_path, f"{GOOD}\n\n{again}"))
    assert [claim.id for claim in claims] == ["mine", "b"]
    assert [result.verdict for result in claims_report(pair(75, 70), claims=claims)] == ["true"] * 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("yield", "yeld", "mine.py, line 8: SyntaxError: invalid syntax"),
        ("MLM, CLM", "MLM, CLM, X", "mine.py, line 3: not enough values to unpack"),
        ("bounds, claim", "clam", "mine.py, line 1: ImportError: cannot import name 'clam'"),
        ("@claim", "exit('no')\n@claim", "mine.py, line 6: SystemExit: no"),
        ("@claim", "raise BaseException(1)\n@claim", "mine.py, line 6: BaseException: 1"),
        ("@claim", "# claim", "mine.py: no claims; claims are a Python file with functions"),
        ('"mine"', '""', "mine.py, line 6: @claim: give a short id of letters, digits"),
        ('"A sentence."', '""', "mine.py, line 6: @claim: give a short id of letters, digits"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path, old, new, message) -> None:
    with pytest.raises(ConfigError) as error:
        load_claims(written(tmp_path, GOOD.replace(old, new)))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["mine.yaml", "mine.yml", "mine.json", "mine"])
def test_the_old_form_is_refused_with_the_new_one(tmp_path, name) -> None:
    with pytest.raises(ConfigError) as error:
        load_claims(written(tmp_path, "format: biphasic.claims/1\nclaims: []\n", name))
    assert str(error.value) == (
        f"{tmp_path / name}: claims are a Python file with functions under @claim(id, sentence); "
        "see docs/claims.md"
    )


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("table.compare(MLM, CLM, 'hihger')", "no outcome 'hihger' (did you mean 'higher'?)"),
        ("table.compare(MLM, CLM, 'higher', mask_rat=0.4)", "no factor 'mask_rat' (did you mean"),
        ("table.compare(MLM, {**CLM, 'group': 'a'}, 'higher')", "group: name it as an option"),
        ("table.compare(MLM, CLM, 'higher', mask_rate='high')", "mask_rate: 'high' is neither"),
        ("table.compare(MLM, CLM, 'higher', mask_rate=True)", "mask_rate: True is neither"),
        ("table.compare(MLM, CLM, 'higher', size=350)", "size: 350 is neither a name"),
        ("table.compare(MLM, CLM, 'higher', task='largest')", "task: has no order; give a name"),
        ("table.compare(MLM, CLM, 'higher', at_least=9 / 8)", "1.125: expected a positive integer"),
        ("table.compare(MLM, CLM, 'higher', at_least=0)", "0: expected a positive integer"),
        ("table.compare(MLM, CLM, 'higher', at_least=1, at_most=2)", "give one of at_least, at_m"),
        ("table.compare(MLM, CLM, 'higher', needs={'task': 2})", "no factor 'task'"),
        ("table.compare(MLM, CLM, 'significantly higher', gap=(MLM, CLM))", "have intervals"),
        ("table.trend('size', 'never significantly decreases', gap=(MLM, CLM))", "intervals"),
        ("table.trend('task', 'increases')", "no factor 'task'"),
        ("table.best('mask_rate')", "TypeError: Table.best() missing 1 required positional"),
        ("table.best('task', 'QA', across='task')", "across=, another factor"),
        ("table.best('task', 'QA', by='mean rank')", "across=, another factor"),
        ("table.best('task', 'QA', best_level='mask_rate')", "best and worst take scores"),
        ("table.varies('size', gap=(MLM, CLM), best_level='mask_rate')", "gap or best_level, not"),
        ("table.varies('size', best_level='objective')", "no factor 'objective' (known:"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("exit(0)", "SystemExit: 0"),
        ("(_ for _ in ()).throw(GeneratorExit('gone'))", "GeneratorExit: gone"),
        ("table.compare(MLM, CLM, 'higher', finished='no')", "finished: 'no' is neither True"),
        ("table.compare(MLM, CLM, 'higher', mask_rate=bounds())", "bounds: give at least one"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_by_claim_and_line(
    tmp_path, question, message
) -> None:
    text = GOOD.replace('table.compare(MLM, CLM, "higher")', question)
    claims = load_claims(written(tmp_path, text))
    with pytest.raises(ConfigError) as error:
        claims_report(pair(75, 70), claims=claims)
    assert str(error.value).startswith(f"{tmp_path / 'mine.py'}, line 8: claim 'mine': ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_claim_without_checks_is_refused(tmp_path) -> None:
    for old, new, message in (
        ("yield", "return iter(()) or", "yields no check"),
        ("yield", "return", "returns Check.* it must yield checks"),
        ("yield", "_ =", "returns None; it must yield checks"),
        ("yield", "yield 'mine' or", "yields 'mine', which is not a check"),
    ):
        claims = load_claims(written(tmp_path, GOOD.replace(old, new)))
        with pytest.raises(ConfigError, match=f"line 6: claim 'mine': {message}"):
            claims_report(pair(75, 70), claims=claims)


def test_two_claims_of_one_id_are_refused(tmp_path) -> None:
    file = written(tmp_path, GOOD + GOOD)
    with pytest.raises(ConfigError, match="id: mine given more than once"):
        load_claims(file)


def test_the_paper_s_file_has_every_claim_once_with_its_place() -> None:
    claims = paper_claims()
    assert [claim.id for claim in claims] == [*(f"C{n:02}" for n in range(1, 29)), "B01"]
    assert all(claim.source for claim in claims)


def test_a_check_repeated_in_the_weaker_form_is_printed_in_both() -> None:
    def again(table: Table) -> Check:
        return table.compare(MLM, CLM, "higher", weaker=True)

    result = ask(pair(75, 70), is_mlm_higher, again)
    lines = [line for line in body_lines(result, with_details=True) if line.endswith(": holds")]
    assert [line.startswith("weaker form") for line in lines] == [False, True]


def test_what_a_score_at_an_end_of_the_rates_decides_is_provisional() -> None:
    scores, end = pair(75, 70), "validation chooses the lowest or highest learning rate tried"
    cells = {key: replace(one, is_at_end=key[0] == "mlm") for key, one in scores.cells.items()}
    lines = [*body_lines(ask(replace(scores, cells=cells), is_mlm_higher), with_details=True)]
    assert f"provisional: in 1 of 1 comparison, {end}" in lines
    assert lines[-1].endswith("clm 70.00 (0.50): +5.00* (provisional)")
    usual = body_lines(ask(scores, is_mlm_higher), with_details=True)
    assert not any("provisional" in line for line in usual)


def test_the_nearest_level_may_not_lie_too_far_off() -> None:
    rates = {0.2: 60.0, 0.3: 61.0}
    scores = table({model(f"mlm{r}", mask_rate=r): {"SC": mean} for r, mean in rates.items()})
    far = nearest(0.4, within=0.05)
    result = ask(scores, lambda table: table.compare({"mask_rate": far}, MLM, "higher"))
    assert result.missing == "no masking rate nearest 0.4 within 0.05"


def test_factors_are_written_as_words_and_names_as_they_are() -> None:
    cells = {"ag_news": 70.0, "SC": 60.0}
    scores = table({model("mlm2", mask_rate=0.2): cells, model("mlm4", mask_rate=0.4): cells})
    (best,) = ask(scores, lambda table: table.best("task", "ag_news")).checks
    assert "ag_news" in best.expected
    (trend,) = ask(scores, lambda table: table.trend("mask_rate", "increases")).checks
    assert trend.expected.endswith("masking rate")
    lacking = ask(scores, lambda table: table.compare(MLM, CLM, "higher", dataset="ag_2"))
    assert "ag_2" in lacking.missing
