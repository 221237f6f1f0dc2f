"""Which of a grid's models is kept, and read again."""

import numpy as np
import pytest
import torch

from biphasic.errors import CheckpointError
from biphasic.evaluation.evaluate import best_result
from biphasic.records import ResultRecord
from biphasic.study.jobs import find_kept, keep_best
from biphasic.tasks.finetune import FinetuneRun, TrainedModel
from biphasic.tasks.kinds.kind import Learner, SplitScores
from biphasic.tasks.protocol import FinetuneProtocol


class _Task(Learner):
    def __init__(self):
        """Encode nothing: the models are made by hand."""

    def encode(self, task):
        raise NotImplementedError

    def evaluate(self, encoder, head):
        raise NotImplementedError


def result_of(score, learning_rate, seed):
    metrics = None if score is None else {"accuracy": score}
    return ResultRecord(
        format="biphasic.finetune/1",
        id=f"{learning_rate}{seed}",
        state="s",
        task="t",
        kind="sc",
        metric="accuracy",
        learning_rate=learning_rate,
        seed=seed,
        status="diverged" if score is None else "finished",
        steps=3,
        validation=metrics,
        test=metrics,
        seconds=1.0,
    )


def finetuned(score, *, learning_rate=1e-3, seed=0, number=0.0):
    run = FinetuneRun(_Task(), learning_rate, seed, FinetuneProtocol())
    metrics = {"accuracy": score}
    splits = {"validation": SplitScores(metrics, (), np.array([]))} if score else {}
    result = result_of(score, learning_rate, seed), splits
    weights = {"weight": torch.full((2,), float(number))}
    return TrainedModel(run, (result,), weights, head={"bias": torch.zeros(1)})


def test_the_best_is_kept_whatever_the_order(tmp_path):
    offers = [(0.5, 1e-4, 0), (0.7, 2e-4, 1), (0.7, 2e-4, 0), (0.7, 5e-4, 0), (None, 1e-2, 0)]
    for turn in range(len(offers)):
        folder = tmp_path / str(turn) / "part"
        for number, (score, rate, seed) in enumerate(offers[turn:] + offers[:turn]):
            model = finetuned(score, learning_rate=rate, seed=seed, number=number)
            keep_best(folder, model)
        kept = find_kept(folder.parent, learning_rate=2e-4, seed=0)
        assert kept is not None
        assert kept.metrics == {"validation": {"accuracy": 0.7}}
        assert kept.body["weight"].tolist() == [(2 - turn) % len(offers)] * 2
        assert find_kept(folder.parent, learning_rate=5e-4, seed=0) is None


def test_all_diverged_keeps_nothing(tmp_path):
    keep_best(tmp_path / "part", finetuned(None))
    assert find_kept(tmp_path, learning_rate=1e-3, seed=0) is None


def test_damage_is_named(tmp_path):
    keep_best(tmp_path / "part", finetuned(0.5))
    (tmp_path / "part/body.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"body\.safetensors: wrong size"):
        find_kept(tmp_path, learning_rate=1e-3, seed=0)


def test_the_choice_among_results_is_the_same():
    offers = [
        result_of(*offer)
        for offer in (
            (0.5, 1e-4, 0),
            (0.7, 2e-4, 1),
            (0.7, 2e-4, 0),
            (0.7, 5e-4, 0),
            (None, 1e-2, 0),
        )
    ]
    for turn in range(len(offers)):
        best = best_result(offers[turn:] + offers[:turn], metric="accuracy")
        assert best is offers[2]
    assert best_result(offers[4:], metric="accuracy") is None
