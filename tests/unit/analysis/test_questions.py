"""Questions asked before the results: their answers, forecasts, and corrections."""

import csv
import json
import subprocess
import sys

import pytest
from test_replicates import replicated_study

from biphasic.analysis.page.evidence import study_answers, study_families
from biphasic.analysis.questions.answer import Answer
from biphasic.analysis.questions.forecast import ForecastOutcome
from biphasic.analysis.questions.text import answer_sentence, forecast_sentence
from biphasic.analysis.records import load_study
from biphasic.analysis.report import write_report
from biphasic.analysis.statistics.pair_tests import holm
from biphasic.records import ForecastRecord, QuestionRecord

TASKS = ["pydocs-sc", "pydocs-tc"]


def runs(name):
    return [f"{name}-seed{seed}" for seed in (1, 2, 3)]


def asked(first, second, *tasks, **more):
    return {"first": runs(first), "second": runs(second), "tasks": list(tasks or TASKS), **more}


def question(*comparisons, name="Q1", support=(1, 0), against=(1, None)):
    return {
        "name": name,
        "question": "Is CLM better than MLM?",
        "comparisons": list(comparisons),
        "supported_if": {"clear_for": support[0], "clear_against": support[1]},
        "against_if": {"clear_against": against[0], "clear_for": against[1]},
    }


@pytest.fixture
def ask(tmp_path):
    """Return a function that adds questions to a study of CLM and MLM with three runs each."""
    folder, store = replicated_study(tmp_path, seeds=(0,))

    def add(*questions, **changes):
        record = json.loads((folder / "study.json").read_text())
        record.update(questions=list(questions), **changes)
        (folder / "study.json").write_text(json.dumps(record))
        return folder, store

    return add


def answers_of(study):
    return study_answers(load_study(*study))


def test_comparisons_of_a_question_are_corrected_together_and_apart_from_others(ask):
    study = ask(
        question(asked("clm", "mlm")),
        question(asked("mlm", "clm", "pydocs-sc"), name="Q2"),
        compare=[asked("clm", "mlm", "pydocs-tc")],
    )
    first, second = answers_of(study)
    tests = [one.test for one in first.outcomes]
    assert [test.size for test in tests] == [2, 2]
    expected = holm([test.contrast.p_value for test in tests])
    assert [test.p_adjusted for test in tests] == pytest.approx([*expected])
    [other] = second.outcomes
    assert (other.test.size, other.test.contrast.mean) == (1, -tests[0].contrast.mean)
    # A pair of several families is shown with the correction of its question.
    [pair] = study_families(load_study(*study))["pydocs-tc"].of_plan
    assert (pair.is_planned, pair.family_size) == (True, 2)


def test_a_difference_of_differences_by_hand(ask):
    """(clm - mlm) - (mlm - clm) is twice the difference."""
    plain, twice = answers_of(
        ask(
            question(asked("clm", "mlm")),
            question(asked("clm", "mlm", minus=[runs("mlm"), runs("clm")]), name="Q2"),
        )
    )
    assert [one.test.contrast.mean for one in twice.outcomes] == pytest.approx(
        [2 * one.test.contrast.mean for one in plain.outcomes]
    )
    assert twice.outcomes[0].label.startswith("(")


def outcome(clear):
    class Clear:
        test, is_complete = object(), True

    Clear.clear = clear
    return Clear()


@pytest.mark.parametrize(
    ("clear", "verdict"),
    [
        ([1, 1, 0], "supported"),
        ([1, 0, 0], "undecided"),
        ([1, 1, -1], "undecided"),
        ([-1, -1, 0], "counts against"),
        ([-1, -1, 1], "counts against"),
        ([0, 0, -1], "undecided"),
    ],
)
def test_the_rule_of_the_study_decides(clear, verdict):
    record = QuestionRecord(**question(asked("a", "b"), support=(2, 0), against=(2, None)))
    answer = Answer(record, tuple(map(outcome, clear)), "seed")
    assert answer.verdict == verdict
    strict = QuestionRecord(**question(asked("a", "b"), support=(2, 0), against=(2, 0)))
    mixed = Answer(strict, tuple(map(outcome, [-1, -1, 1])), "seed")
    assert mixed.verdict == "undecided"


def test_an_answer_waits_for_all_scores(ask):
    study = ask(question(asked("clm", "mlm")))
    for result in (study[1] / "finetunes").glob("*/result.json"):
        if json.loads(result.read_text())["task"] == "pydocs-tc":
            result.unlink()
    [answer] = answers_of(study)
    assert answer.verdict == "no data"
    assert answer_sentence(answer) == "No data: 1 of 2 comparisons has no scores yet."


@pytest.mark.parametrize(
    ("measured", "covered", "score"),
    [
        (3.0, True, 5.0),  # inside: the width
        (-1.0, True, 5.0),  # at an end
        (6.0, False, 5 + 20 * 2),  # two points above
        (-1.5, False, 5 + 20 * 0.5),
    ],
)
def test_the_interval_score_by_hand(measured, covered, score):
    forecast = ForecastRecord(difference=1, interval=(-1, 4))
    outcome = ForecastOutcome(forecast, measured)
    assert (outcome.is_covered, outcome.interval_score) == (covered, pytest.approx(score))


def test_the_report_opens_with_answers_and_forecasts(ask):
    forecast = {"difference": 0, "interval": [-50, 50]}
    wrong = {"difference": -40, "interval": [-50, -30]}
    study = ask(
        question(
            asked("clm", "mlm", "pydocs-sc", forecast=forecast),
            asked("clm", "mlm", "pydocs-tc", forecast=wrong),
        )
    )
    page = write_report(*study).read_text()
    assert page.index('id="questions"') < page.index('id="overview"')
    [answer] = answers_of(study)
    assert answer_sentence(answer) in page
    assert "1 of 2 90\N{NO-BREAK SPACE}% intervals covers the measured difference" in page
    assert forecast_sentence([answer]).startswith("1 of 2")
    text = (study[0] / "report/questions.csv").read_text()
    rows = [*csv.DictReader(text.splitlines())]
    assert [(row["dataset"], row["covered"]) for row in rows] == [
        ("pydocs-sc", "yes"), ("pydocs-tc", "no"),
    ]  # fmt: skip
    first = answer.outcomes[0]
    assert float(rows[0]["p_corrected"]) == first.p_corrected
    assert float(rows[0]["interval_score"]) == 100.0
    write_report(*ask())
    assert not (study[0] / "report/questions.csv").exists()


def test_answers_need_no_torch(ask):
    folder, store = ask(question(asked("clm", "mlm")))
    code = (
        "import sys; from pathlib import Path; from biphasic.analysis.report import write_report; "
        f"write_report(Path({str(folder)!r}), Path({str(store)!r})); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert (folder / "report/questions.csv").is_file()
