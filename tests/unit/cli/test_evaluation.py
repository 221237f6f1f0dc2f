"""What `biphasic evaluate` prints of one task."""

from pathlib import Path

import pytest

from biphasic.analysis.estimate import estimate
from biphasic.cli.evaluation import print_evaluation
from biphasic.records import ResultRecord
from biphasic.study.evaluation import Evaluation
from biphasic.tasks.records import TaskInfo

SCORES = (0.6, 0.62, 0.64, 0.66, 0.68)


def evaluation(scores, convention):
    results = tuple(
        ResultRecord(
            format="biphasic.finetune/1", id=str(seed), state="s", task="t", kind="sc",
            metric="accuracy", learning_rate=1e-4, seed=seed, status="finished", steps=1,
            validation={"accuracy": score}, test={"accuracy": score}, seconds=1.0,
        )
        for seed, score in enumerate(scores)
    )  # fmt: skip
    return Evaluation(
        task=TaskInfo("t", "sc", "T", "accuracy", "0" * 64), metric="accuracy",
        convention=convention,
        estimate=estimate([100 * score for score in scores], convention=convention),
        selected=results, results=results, folder=Path(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("scores", "convention", "told"),
    [(SCORES, "paper", True), (SCORES, "standard", False), (SCORES[:1], "paper", False)],
)
def test_intervals_by_the_paper_s_convention_say_what_they_cover(scores, convention, told, capsys):
    assert print_evaluation(evaluation(scores, convention))
    printed = capsys.readouterr().out
    assert printed.startswith(f"t accuracy: {100 * sum(scores) / len(scores):.2f}")
    assert ("about 88 times in 100 with 5 seeds, not 95" in printed) is told
