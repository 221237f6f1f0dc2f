"""Sequence regression: standardised targets, and predictions in the task's own units."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from biphasic.errors import TrainingError
from biphasic.tasks.kinds.regression import encode_regression, standardisation
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import RegressionTask, ScoredText, TaskInfo

INFO = TaskInfo("t", "sr", "T", "spearman", "0" * 64)
VALUES = {"train": (1.0, 5.0), "validation": (2.0, 3.0, 4.0), "test": (0.0, 6.0, 5.0)}


@pytest.fixture
def task():
    def texts(split):
        return tuple(ScoredText(f"{split}{v}", "the cat", v) for v in VALUES[split])

    return RegressionTask(INFO, {split: texts(split) for split in VALUES})


@pytest.fixture
def encoded(task, tokenizer):
    return encode_regression(task, tokenizer, protocol=FinetuneProtocol())


class Fixed:
    """An encoder whose states are given numbers, one token to each text."""

    device = torch.device("cpu")

    def __init__(self, *outputs):
        self.outputs = torch.tensor(outputs)[:, None]

    def states(self, sequences):
        places = np.arange(len(sequences))
        return self.outputs, np.stack([places, places + 1], axis=1)

    def pooled(self, sequences):
        return self.outputs[: len(sequences)]


def test_targets_are_standardised_by_the_training_split(task, encoded):
    # Values 1 and 5: mean 3, deviation 2, so -1 and 1.
    assert standardisation(task) == (3.0, 2.0)
    loss = encoded.loss(Fixed(-1.0, 1.0), nn.Identity(), np.array([0, 1]))
    assert loss.item() == 0.0
    loss = encoded.loss(Fixed(0.5, -1.0), nn.Identity(), np.array([1, 0]))
    assert loss.item() == pytest.approx(((0.5 - 1) ** 2 + 0) / 2)


def test_predictions_are_in_the_units_of_the_values(encoded):
    scores = encoded.evaluate(Fixed(-1.0, 1.5, 2.0), nn.Identity())["test"]
    assert scores.columns["predicted"].tolist() == [1.0, 6.0, 7.0]
    assert scores.columns["value"].tolist() == [0.0, 6.0, 5.0]
    # Squared errors 1, 0 and 4, negated: more is better, as in all other kinds.
    assert scores.scores.tolist() == [-1.0, 0.0, -4.0]
    # Ranks 0, 2, 1 against 0, 1, 2: 1 - 6 * 2 / (3 * 8).
    assert scores.metrics["spearman"] == pytest.approx(0.5)
    expected = np.corrcoef([0, 6, 5], [1, 6, 7])[0, 1]
    assert scores.metrics["pearson"] == pytest.approx(expected)


def test_constant_predictions_score_zero(encoded):
    scores = encoded.evaluate(Fixed(0.3, 0.3, 0.3), nn.Identity())
    assert scores["test"].metrics == {"spearman": 0.0, "pearson": 0.0}


def test_predictions_that_are_not_finite_are_no_scores(encoded):
    with pytest.raises(TrainingError, match="not finite"):
        encoded.evaluate(Fixed(0.3, float("inf"), 0.3), nn.Identity())
