"""Two one-sided tests against the margin of a question: p values, answers, and their errors."""

import csv
import dataclasses

import numpy as np
import pytest
from made_scores import made_scores, scores_with_examples
from scipy import stats
from test_questions import answers_of, ask, asked, question
from test_replicates import run_cli

from biphasic.analysis.page.markdown import answers_page
from biphasic.analysis.questions.answer import answer
from biphasic.analysis.records import load_records
from biphasic.analysis.report import write_report
from biphasic.analysis.scores.source import asked_of
from biphasic.analysis.statistics.contrast import contrast_of, holm, pooled
from biphasic.analysis.statistics.crossed import NO_EXAMPLES
from biphasic.analysis.words import words
from biphasic.records import AskedRecord, ForecastRecord, QuestionRecord
from biphasic.study.run.register import Design, powers

__all__ = ["ask"]  # the fixture

DIFFERENCES = [0.4, -0.9, 1.3, 0.2, -0.3]


def by_scipy(differences, margin):
    """Return the p value of two one-sided t tests."""
    return max(
        stats.ttest_1samp(differences, end, alternative=side).pvalue
        for end, side in ((-margin, "greater"), (margin, "less"))
    )


@pytest.mark.parametrize("margin", [0.1, 1, 2.5])
@pytest.mark.parametrize("shift", [0, 0.8, -0.8])
def test_over_seeds_the_p_value_is_that_of_two_t_tests(margin, shift):
    differences = [value + shift for value in DIFFERENCES]
    one = contrast_of(dict(enumerate(differences)), NO_EXAMPLES)
    found = one.within(margin)
    assert found.p_value == pytest.approx(by_scipy(differences, margin))
    assert (-one).within(margin).p_value == pytest.approx(found.p_value)
    assert found.interval == one.interval


def test_the_larger_p_value_of_both_variances_counts_and_that_of_the_sum_alone():
    values = np.array(DIFFERENCES)
    arms = np.random.default_rng(1).normal(size=(4, 5))
    blocks = [pooled(spread * arms) for spread in (3.0, 0.1)]
    one = contrast_of(dict(enumerate(DIFFERENCES)), NO_EXAMPLES, blocks=blocks)
    assert one.is_pooled
    wide, narrow = (
        max(block.squared_errors(np.array([values.var(ddof=1) / 5]))[0] ** 0.5 for block in [each])
        for each in blocks
    )
    expected = stats.t.sf((5 - abs(values.mean())) / wide, blocks[0].freedom)
    assert wide > narrow
    assert one.within(5).p_value == pytest.approx(expected)
    alone = by_scipy(DIFFERENCES, 5)
    assert one.within(5).p_corrected(0.0) == pytest.approx(alone)


def test_test_examples_widen_the_error():
    draw = np.random.default_rng(0)
    rows = {name: 0.5 + 0.1 * draw.normal(size=(5, 40)) for name in "ab"}
    scores = scores_with_examples(rows)
    [one] = level_answer(scores, 2, ["a"]).outcomes
    of_seeds = by_scipy([*one.test.by_seed.values()], 2)
    [test] = one.test.tests
    distance = 2 - abs(one.test.mean)
    expected = stats.t.sf(distance / test.error, test.freedom)
    assert one.p_level == pytest.approx(max(expected, of_seeds))
    assert expected > of_seeds


def test_without_a_spread_nothing_is_level():
    one = contrast_of({0: 0.25, 1: 0.25}, NO_EXAMPLES)
    assert one.within(2).p_value is None


def level_answer(scores, margin, firsts, **rule):
    """Answer whether some models are better than b, with a margin."""
    record = QuestionRecord(
        **question(*[{"first": [n], "second": ["b"], "tasks": ["d"]} for n in firsts], **rule),
        margin=margin,
    )
    return answer(record, [dataclasses.replace(scores, planned=tuple(asked_of(record)))])


def test_comparisons_are_corrected_for_their_question():
    draw = np.random.default_rng(2)
    scores = made_scores({name: draw.normal(size=5) for name in "abcd"})
    found = level_answer(scores, 2.5, "acd")
    alone = [by_scipy([*one.test.by_seed.values()], 2.5) for one in found.outcomes]
    assert [one.p_level for one in found.outcomes] == pytest.approx([*holm(alone)])


NOISE = 0.01 * np.array([1, -1, 2, -2, 0])


@pytest.mark.parametrize(
    ("lead", "other", "rule", "verdict"),
    [
        (0, 0, {}, "level"),
        (0.5, 0.5, {}, "supported and level"),
        (-0.5, 0, {}, "counts against and level"),
        (3, 0, {}, "supported"),
        (0.5, -0.5, {"support": (1, 1), "against": (1, 1)}, "level"),  # both rules hold
        (3, -3, {"support": (1, 1), "against": (1, 1)}, "undecided"),
    ],
)
def test_an_answer_is_level_if_all_comparisons_are(lead, other, rule, verdict):
    base = np.array([50.0, 51, 52, 53, 54])
    scores = made_scores({"a": base + lead + NOISE, "c": base + other - NOISE, "b": base})
    found = level_answer(scores, 1, "ac", **rule)
    assert found.verdict == verdict
    level = [abs(each) < 1 for each in (lead, other)]
    assert [one.is_level for one in found.outcomes] == level
    assert f"{sum(level)} level within 1 point" in words().answer(found)
    clear = [bool(one.clear) for one in found.outcomes]
    both = sum(map(min, level, clear))
    assert (f"({both} both: not zero, but smaller than" in words().answer(found)) == bool(both)
    assert "; level if all are level within 1 point, also beside one of these; else" in (
        words().rule(found.question)
    )


def test_all_answers_show_what_is_level(ask):
    plain = question(asked("clm", "mlm", "pydocs-sc"))
    wide = {**plain, "name": "Q2", "margin": 90}
    narrow = {**question(asked("clm", "mlm"), support=(3, 0), against=(3, None)), "name": "Q3",
              "margin": 0.001}  # fmt: skip
    folder, store = ask(plain, wide, narrow)
    first, second, third = answers_of((folder, store))
    assert [one.p_level for one in first.outcomes] == [None]
    assert third.verdict == "undecided"
    page = write_report(folder, store).read_text()
    assert page.count('<th scope="col">Level<small>') == 2
    assert '<th scope="col">Level<small>level within 90 points</small>' in page
    rows = [*csv.DictReader((folder / "report/questions.csv").read_text().splitlines())]
    found = [(row["question"], row["margin"], row["level"]) for row in rows]
    assert found == [
        ("Q1", "", ""), ("Q2", "90.0", "yes"), ("Q3", "0.001", "no"), ("Q3", "0.001", "no"),
    ]  # fmt: skip
    levels = [one for each in (second, third) for one in each.outcomes]
    margins = zip(levels, (90, 0.001, 0.001), strict=True)
    alone = [one.test.within(margin).p_value for one, margin in margins]
    assert [float(row["p_level_of_study"]) for row in rows[1:]] == pytest.approx([*holm(alone)])
    shown = run_cli("study", "report", str(folder))
    assert f"Q2: {second.verdict} within 90 points" in shown.splitlines()
    markdown = answers_page(load_records(folder, store))
    assert "| Level | p of level, corrected | p of level, whole study |" in markdown
    assert "| level within 90 points | " in markdown


def test_a_question_that_names_none_adds_nothing(ask):
    study = ask(question(asked("clm", "mlm")))
    page = write_report(*study).read_text()
    assert "Level</th>" not in page
    assert "“Level”" not in page
    assert "margin" not in (study[0] / "report/questions.csv").read_text()
    assert "Level" not in answers_page(load_records(*study))
    assert "margin" not in load_records(*study).study.model_dump_json()


NUM = 4_000
MOST = 0.05 + 3 * (0.05 * 0.95 / NUM) ** 0.5


def test_a_true_difference_of_the_margin_is_level_in_one_of_twenty_studies():
    draw = np.random.default_rng(0)
    shares = [
        np.mean([
            contrast_of(dict(enumerate(row)), NO_EXAMPLES).within(margin).p_value <= 0.05
            for row in (margin + draw.normal(size=(NUM, 5))).tolist()
        ])
        for margin in (10, 1)  # against a standard error of 0.45
    ]  # fmt: skip
    assert 0.04 < shares[0] <= MOST
    assert shares[1] <= MOST


@pytest.mark.parametrize("num_runs", [0, 3])
def test_a_family_at_the_margin_has_a_false_level_in_one_of_twenty_studies(num_runs):
    draw, num = np.random.default_rng(num_runs), 300
    false = 0
    for _ in range(num):
        table = draw.normal(np.array([[0], [6], [6], [6]]), size=(4, num_runs or 5))
        scores = made_scores(dict(zip("bacd", table, strict=True)))
        scores = dataclasses.replace(scores, num_pretraining_runs=num_runs)
        found = level_answer(scores, 6, "acd")
        false += any(one.is_level for one in found.outcomes)
    assert 0 < false / num <= 0.05 + 3 * (0.05 * 0.95 / num) ** 0.5


def test_the_power_of_a_pair_is_that_of_the_t_distribution():
    """With an error that is small beside the margin, one end decides."""
    forecast = ForecastRecord(difference=-4, interval=(-9, 1))
    pair = AskedRecord(first=("a",), second=("b",), tasks=("d",), forecast=forecast)
    found = powers(Design((1.0, -1.0), 2, 5, 1, are_blocks=False, spread=2.0), pair, 6)
    error = 2 * (2 / 5) ** 0.5
    critical = stats.t.ppf(0.975, 4)
    assert found["power_of_forecast"] == pytest.approx(
        stats.nct.sf(critical, 4, 4 / error), abs=0.05
    )
    draw = np.random.default_rng(0).normal(size=(100_000, 2, 5)) * 2
    values = draw[:, 0] - draw[:, 1]
    distance = 6 - np.abs(values.mean(axis=1))
    level = distance / (values.std(axis=1, ddof=1) / 5**0.5) >= stats.t.ppf(0.95, 4)
    assert found["power_of_level"] == pytest.approx(level.mean(), abs=0.05)
    unasked = pair.model_copy(update={"forecast": None})
    assert [*powers(Design((1.0, -1.0), 2, 5, 1, are_blocks=False), unasked, 6)] == [
        "power_of_level"
    ]
