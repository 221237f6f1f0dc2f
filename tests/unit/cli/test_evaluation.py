"""What `biphasic evaluate` prints of one task."""

from dataclasses import replace
from pathlib import Path

import pytest

from biphasic.analysis.estimate import estimate
from biphasic.cli.commands import print_evaluation
from biphasic.evaluation.evaluate import Evaluation
from biphasic.records import ResultRecord
from biphasic.tasks.records import TaskInfo

GRID = (1e-5, 1e-4, 5e-4, 1e-3)
SCORES = (0.6, 0.62, 0.64, 0.66, 0.68)


def evaluation(scores, convention="standard", rates=(1e-4,), kind="sc", others=0.1):
    """Return one whose seeds prefer `rates` in turn, of `GRID` unless it is 1e-4 alone."""
    results = tuple(
        ResultRecord(
            format="biphasic.finetune/1", id=str(seed), state="s", task="t", kind=kind,
            metric="accuracy", learning_rate=rates[seed % len(rates)], seed=seed,
            status="finished", steps=1,
            validation={"accuracy": score}, test={"accuracy": score}, seconds=1.0,
        )
        for seed, score in enumerate(scores)
    )  # fmt: skip
    changes = [{"learning_rate": r, "validation": {"accuracy": others}} for r in GRID]
    rest = tuple(results[0].model_copy(update=change) for change in changes)
    return Evaluation(
        task=TaskInfo("t", kind, "T", "accuracy", "0" * 64), metric="accuracy",
        convention=convention,
        estimate=estimate([100 * score for score in scores], convention=convention),
        selected=results, results=results + (() if rates == (1e-4,) else rest), folder=Path(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("scores", "convention", "is_said"),
    [(SCORES, "paper", True), (SCORES, "standard", False), (SCORES[:1], "paper", False)],
)
def test_intervals_by_the_paper_s_convention_state_their_coverage(
    scores, convention, is_said, capsys
):
    assert print_evaluation(evaluation(scores, convention))
    printed = capsys.readouterr().out
    assert printed.startswith(f"t accuracy: {100 * sum(scores) / len(scores):.2f}")
    assert ("about 88 times in 100 with 5 seeds, not 95" in printed) is is_said


@pytest.mark.parametrize(
    ("rates", "line"),
    [
        ((1e-4,), "rate: 1e-4, the only one tried, with 5 seeds"),
        ((5e-4,), "best rate: 5e-4 with 5 seeds; none is at the edge of the 4 tried"),
        (
            (1e-4, 5e-4),
            "best rates: 1e-4 for 3 of 5 seeds, 5e-4 for 2 of 5 seeds; none is at the edge of the "
            "4 tried",
        ),
        (
            (5e-4, 1e-3),
            "best rates: 5e-4 for 3 of 5 seeds, 1e-3 for 2 of 5 seeds; 1e-3 is the highest of 4 "
            "tried; a higher one may be better, so the score is provisional (--extend, "
            "--learning-rate)",
        ),
        (
            (1e-5,),
            "best rate: 1e-5 with 5 seeds; 1e-5 is the lowest of 4 tried; a lower one may "
            "be better, so the score is provisional (--extend, --learning-rate)",
        ),
    ],
)
def test_the_best_rate_is_printed_with_its_place_in_the_grid(rates, line, capsys):
    assert print_evaluation(evaluation(SCORES, rates=rates))
    assert capsys.readouterr().out.splitlines()[1] == f"  {line}"


@pytest.mark.parametrize(
    ("scores", "rates", "line"),
    [
        (SCORES[:1], (1e-5,), "all 4 rates tried have the same validation score; best rate: 1e-5"),
        (
            SCORES[:2],
            (1e-3,),
            "best rate: 1e-3 with 2 seeds; 1e-3 is the highest of 4 tried; a higher one may be "
            "better, so the score is provisional (--extend, --learning-rate); for 1 of 2 seeds, "
            "other rates have the same validation",
        ),
    ],
)
def test_a_tie_suggests_no_other_rate(scores, rates, line, capsys):
    assert print_evaluation(evaluation(scores, rates=rates, others=scores[0]))
    assert capsys.readouterr().out.splitlines()[1].startswith(f"  {line}")


def test_a_zero_shot_task_has_no_rate(capsys):
    assert print_evaluation(evaluation(SCORES[:1], rates=(5e-4,), kind="zs"))
    printed = capsys.readouterr().out
    assert "rate" not in printed
    assert "  no interval over queries: t: " in printed  # the file of its scores is missing


@pytest.mark.parametrize(
    ("scores", "floor", "said"),
    [
        ((0.50, 0.52, 0.51, 0.49, 0.50), 0.51, "below"),
        (SCORES, 0.63, "not clearly above"),  # the mean, 64, is above, but its interval is not
        (SCORES, 0.55, ""),
        (SCORES[:1], 0.60, "below"),
        (SCORES[:1], 0.59, ""),
    ],
)
def test_floors_and_references_are_printed_with_the_score(scores, floor, said):
    points = {"floor:majority": 100 * floor, "reference:bag-of-words": 80.3, "floor:chance": 25.0}
    lines = [*replace(evaluation(scores), baselines=points).lines()]
    shown = f"  floors: majority {100 * floor:.2f}, chance 25.00; references: bag of words 80.30"
    assert shown in lines
    notes = [line for line in lines if "not evidence of what pretraining adds" in line]
    expected = f"  {said} floor: majority: not evidence of what pretraining adds"
    assert notes == ([expected] if said else [])


def test_without_baselines_there_is_no_line_of_them():
    assert not any("floor" in line or "reference" in line for line in evaluation(SCORES).lines())
