"""What `biphasic evaluate` prints of one task."""

from dataclasses import replace
from pathlib import Path

from biphasic.analysis.estimate import estimate
from biphasic.cli.commands import print_evaluation
from biphasic.evaluation.evaluate import Evaluation
from biphasic.records import ResultRecord
from biphasic.tasks.records import TaskInfo
from snapshots import compare

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


def floored(given, floor):
    """Return one with a floor and references."""
    points = {"floor:majority": 100 * floor, "reference:bag-of-words": 80.3, "floor:chance": 25.0}
    return replace(given, baselines=points)


NOISY = (0.50, 0.52, 0.51, 0.49, 0.50)
CASES = {
    "the standard convention": evaluation(SCORES),
    "the paper's convention": evaluation(SCORES, "paper"),
    "one seed": evaluation(SCORES[:1], "paper"),
    "a rate inside": evaluation(SCORES, rates=(5e-4,)),
    "two rates": evaluation(SCORES, rates=(1e-4, 5e-4)),
    "a rate at the upper end": evaluation(SCORES, rates=(5e-4, 1e-3)),
    "a rate at the lower end": evaluation(SCORES, rates=(1e-5,)),
    "rates alike": evaluation(SCORES[:1], rates=(1e-5,), others=SCORES[0]),
    "rates alike for one seed": evaluation(SCORES[:2], rates=(1e-3,), others=SCORES[0]),
    "zero-shot, its scores missing": evaluation(SCORES[:1], rates=(5e-4,), kind="zs"),
    "below a floor": floored(evaluation(NOISY), 0.51),
    "not clearly above a floor": floored(evaluation(SCORES), 0.63),  # the mean, 64, is above
    "above a floor": floored(evaluation(SCORES), 0.55),
    "one seed below a floor": floored(evaluation(SCORES[:1]), 0.60),
    "one seed above a floor": floored(evaluation(SCORES[:1]), 0.59),
}


def test_evaluations_print_their_snapshot(capsys, tmp_path):
    shown = []
    for name, each in CASES.items():
        assert print_evaluation(each)
        shown.append(f"# {name}\n{capsys.readouterr().out}")
    compare("commands/evaluation", "\n".join(shown), tmp_path)
