"""Claims about scores by seed rest on the report's tests, and are open where these cannot tell."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from made_scores import made_scores
from small_table import ask, model

from biphasic.analysis.claims import Check, Table, bounds, changed_verdicts
from biphasic.analysis.scores.table import DatasetInfo, Scores
from biphasic.analysis.statistics.compare import family_of

SC, TC = DatasetInfo("SC", "SC", "accuracy"), DatasetInfo("TC", "TC", "f1")
LUCK = (0.0, 0.3, -0.2, 0.1, -0.2)


def table(cells: dict[Any, Any], *infos: Any) -> Scores:
    datasets = tuple(d for d in (SC, TC) if any(name == d.name for _, name in cells))
    named = {info.name: info for info in infos}
    return made_scores(cells, datasets=datasets, **named)


MLM, CLM = {"objective": "MLM"}, {"objective": "CLM"}
Question = Callable[[Table], Check]


def around(mean: float, *, width: float = 1.0, shift: int = 0) -> list[float]:
    luck = LUCK[shift:] + LUCK[:shift]
    return [mean + width * each for each in luck]


def answer(scores: Scores, question: Question) -> bool | None:
    (found,) = ask(scores, question).checks
    (comparison,) = found.comparisons
    return comparison.holds


def pair(mlm: list[float], clm: list[float]) -> Scores:
    infos = model("mlm"), model("clm", objective="CLM")
    return table({("mlm", "SC"): mlm, ("clm", "SC"): clm}, *infos)


def test_two_seeds_decide_nothing_as_in_the_report() -> None:
    """81.90 ± 11.09 against 82.25 ± 15.53."""
    scores = pair([81.03, 82.77], [81.03, 83.47])
    (found,) = family_of(scores, "SC").with_best
    assert found.verdict == "undecided"
    for expect in (
        "higher",
        "lower",
        "significantly higher",
        "not significantly lower",
        "not lower",
    ):
        result = ask(scores, lambda table, expect=expect: table.compare(MLM, CLM, expect))
        assert (result.verdict, result.checks[0].comparisons[0].holds) == ("undecided", None)
        assert result.lines("open") == ["SC, nano: mlm 81.90 (11.05), clm 82.25 (15.50): -0.35"]
    assert changed_verdicts(scores) == {}


@pytest.mark.parametrize(
    ("expect", "expected"),
    [("higher", True), ("significantly higher", True), ("lower", False),
     ("not higher", False), ("not significantly lower", True),
     ("significantly different", True), ("not significantly different", False)],
)  # fmt: skip
def test_a_clear_difference_answers_every_question(expect: str, expected: bool) -> None:
    scores = pair(around(80), around(70, shift=1))

    def question(table: Table) -> Check:
        return table.compare(MLM, CLM, expect)

    assert answer(scores, question) is expected
    assert "+10.00*" in ask(scores, question).checks[0].comparisons[0].text


def test_claims_and_report_tell_the_same_of_every_pair() -> None:
    """Six models of which some are apart: nothing is clear in one place and open in another."""
    draw = np.random.default_rng(3)
    rates = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    infos = [model(f"m{rate}", mask_rate=rate) for rate in rates]
    means = (70, 70.5, 71, 74, 74.2, 90)
    cells = {(info.name, "SC"): mean + draw.normal(0, 0.7, 5)
             for info, mean in zip(infos, means, strict=True)}  # fmt: skip
    scores = table(cells, *infos)
    family = family_of(scores, "SC")
    verdicts = set()
    for one, other in permutations(rates, 2):
        sides = {"mask_rate": one}, {"mask_rate": other}
        verdict = family.compare(f"m{one}", f"m{other}").verdict
        verdicts.add(verdict)
        found = answer(scores, lambda table, sides=sides: table.compare(*sides, "higher"))
        assert found is {"higher": True, "lower": False, "undecided": None}[verdict]
    assert verdicts == {"higher", "lower", "undecided"}


RATES = [model(f"m{rate}", mask_rate=rate) for rate in (0.2, 0.3, 0.4)]


def rates(*means: float, width: float = 1.0) -> Scores:
    cells = {(info.name, "SC"): around(mean, width=width, shift=shift)
             for shift, (info, mean) in enumerate(zip(RATES, means, strict=True))}  # fmt: skip
    return table(cells, *RATES)


@pytest.mark.parametrize(
    ("means", "expect", "expected"),
    [
        ((70, 75, 80), "increases", True),
        ((70, 75, 75.1), "increases", None),
        ((70, 65, 65.1), "increases", False),
        ((70, 75, 80), "never decreases", True),
        ((70, 75, 75.1), "never significantly decreases", None),
        ((70, 80, 75), "never significantly decreases", False),
        ((80, 70, 75), "dips in the middle", True),
        ((70.1, 70, 75), "dips in the middle", None),
    ],
)
def test_a_trend_is_one_of_clear_steps(means, expect, expected) -> None:
    assert answer(rates(*means), lambda table: table.trend("mask_rate", expect)) is expected


@pytest.mark.parametrize(
    ("means", "question", "expected"),
    [
        ((70, 75, 80), lambda table: table.best("mask_rate", 0.4), True),
        ((70, 80, 80.1), lambda table: table.best("mask_rate", 0.4), None),
        ((70, 80, 80.1), lambda table: table.best("mask_rate", bounds(at_least=0.3)), True),
        ((70, 80, 80.1), lambda table: table.best("mask_rate", 0.2), False),
        ((70, 80, 80.1), lambda table: table.best("mask_rate", 0.2, is_not=True), True),
        ((70, 80, 80.1), lambda table: table.worst("mask_rate", 0.2), True),
        ((70, 70.1, 80), lambda table: table.worst("mask_rate", 0.2, is_not=True), None),
        ((70, 75, 80), lambda table: table.varies("mask_rate"), True),
        ((70, 70.1, 70.2), lambda table: table.varies("mask_rate"), None),
    ],
)
def test_the_best_level_is_one_that_is_clearly_best(means, question, expected) -> None:
    assert answer(rates(*means), question) is expected


@pytest.mark.parametrize(("last", "expected"), [(70.2, None), (80, True)])
def test_values_are_tested_for_variation_where_a_score_is_missing_too(last, expected) -> None:
    means = zip(RATES, (70, 70.1, last), strict=True)
    cells = {(info.name, "SC"): around(mean, shift=n) for n, (info, mean) in enumerate(means)}
    scores = table({**cells, ("m0.5", "TC"): around(70)}, *RATES, model("m0.5", mask_rate=0.5))
    assert answer(scores, lambda table: table.varies("mask_rate", task="SC")) is expected


@pytest.mark.parametrize(("number", "expected"), [(1, True), (2, None)])
def test_variation_is_corrected_for_all_comparisons_of_its_check(number, expected) -> None:
    """The p value of each difference is 0.04."""
    cells = {
        (info.name, task): around(mean, width=width)
        for info in RATES[:number]
        for task, mean, width in (("SC", 70.2845, 1.0), ("TC", 70, 0.0))
    }
    (check,) = ask(table(cells, *RATES[:number]), lambda table: table.varies("task")).checks
    assert [one.holds for one in check.comparisons] == [expected] * number


def test_which_level_is_best_is_known_where_it_is_clear() -> None:
    def question(table: Table) -> Check:
        return table.compare({"task": "SC"}, {"task": "TC"}, "higher", best_level="mask_rate")

    cells = {}
    for shift, (info, sc, tc) in enumerate(zip(RATES, (70, 75, 80), (80, 75, 70), strict=True)):
        cells[info.name, "SC"] = around(sc, shift=shift)
        cells[info.name, "TC"] = around(tc, shift=shift)
    assert answer(table(cells, *RATES), question) is True
    cells["m0.2", "TC"] = around(75.1)
    result = ask(table(cells, *RATES), question)
    assert result.verdict == "undecided"
    assert result.missing == "no number for the best masking rate"


@pytest.mark.parametrize(("gap", "expected"), [(4.0, True), (0.1, None), (-4.0, False)])
def test_differences_of_differences_are_tested_too(gap: float, expected: bool | None) -> None:
    """MLM's lead over CLM on SC beside that on TC."""
    infos = model("mlm"), model("clm", objective="CLM")
    cells = {
        ("mlm", "SC"): around(75 + gap), ("clm", "SC"): around(70, shift=1),
        ("mlm", "TC"): around(75, shift=2), ("clm", "TC"): around(70, shift=3),
    }  # fmt: skip
    found = answer(table(cells, *infos), lambda table: table.best("task", "SC", gap=(MLM, CLM)))
    assert found is expected


@pytest.mark.parametrize("by", ["mean", "mean rank"])
@pytest.mark.parametrize(("means", "expected"), [((70, 75, 80), True), ((70, 79.9, 80), None)])
def test_levels_are_compared_across_tasks(by: str, means: tuple[float, ...], expected) -> None:
    cells = {
        (info.name, task): around(mean, shift=shift)
        for task in ("SC", "TC")
        for shift, (info, mean) in enumerate(zip(RATES, means, strict=True))
    }

    def question(table: Table) -> Check:
        return table.best("mask_rate", 0.4, across="task", by=by)

    assert answer(table(cells, *RATES), question) is expected
