"""Kinds with one output vector per text: targets, losses, and what is kept of each text."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from biphasic.errors import TrainingError
from biphasic.tasks.finetune import encode_task
from biphasic.tasks.kinds.similarity import standardisation
from biphasic.tasks.kinds.text import AnsweredText
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS, ExampleTask
from custom_tasks import task_info

LABELS = ("fast", "new", "old")
LABEL_SETS = {"train": ((0, 1), ()), "validation": ((2,),), "test": ((0, 2), (1,), ())}
VALUES = {"train": (1.0, 5.0), "validation": (2.0, 3.0, 4.0), "test": (0.0, 6.0, 5.0)}


class Fixed:
    """An encoder whose states, one token to each text, are the head's outputs."""

    def __init__(self, *outputs):
        self.outputs = torch.tensor(outputs)

    def states(self, sequences):
        places = np.arange(len(sequences))
        return self.outputs, np.stack([places, places + 1], axis=1)

    def pooled(self, sequences):
        return self.outputs[: len(sequences)]


def encode(tokenizer, *labels):
    texts = tuple(AnsweredText(f"t{n}", "the cat", label) for n, label in enumerate(labels))
    splits = dict.fromkeys(SPLITS, texts)
    task = ExampleTask(task_info("sc", "accuracy"), splits, ("bad", "fair", "good"))
    return encode_task(task, tokenizer, protocol=FinetuneProtocol())


def test_predictions_are_kept_by_name(tokenizer):
    encoded = encode(tokenizer, 0, 2, 2)
    logits = [3.0, 1.0, 0.0], [0.0, 1.0, 0.5], [-1.0, 0.0, 2.0]
    scores = encoded.evaluate(Fixed(*logits), nn.Identity())["test"]
    assert scores.columns["label"] == ["bad", "good", "good"]
    assert scores.columns["predicted"] == ["bad", "fair", "good"]
    assert list(scores.columns["correct"]) == [True, False, True]
    assert scores.scores.tolist() == [1.0, 0.0, 1.0]
    # F1 of bad 1, fair 0, good 2/3. Covariances over 9: right 3*2 - (1*1 + 0*1 + 2*1) = 3,
    # predicted 9 - 3 = 6, labels 9 - 5 = 4: 3 / sqrt(24).
    assert scores.metrics["accuracy"] == 2 / 3
    assert abs(scores.metrics["macro_f1"] - 5 / 9) < 1e-12
    assert abs(scores.metrics["matthews"] - 3 / 24**0.5) < 1e-12


def test_of_equal_logits_the_first_label_is_predicted(tokenizer):
    scores = encode(tokenizer, 1).evaluate(Fixed([0.0, 2.0, 2.0]), nn.Identity())["test"]
    assert scores.columns["predicted"] == ["fair"]
    # One label alone leaves the Matthews correlation undefined.
    assert scores.metrics == {"accuracy": 1.0, "macro_f1": 1.0, "matthews": 0.0}


@pytest.fixture
def several(tokenizer):
    splits = {
        split: tuple(AnsweredText(f"{n}", "the cat", labels) for n, labels in enumerate(rows))
        for split, rows in LABEL_SETS.items()
    }
    task = ExampleTask(task_info("ml", "micro_f1"), splits, LABELS)
    return encode_task(task, tokenizer, protocol=FinetuneProtocol())


def test_the_loss_is_the_mean_over_texts_and_labels(several):
    loss = several.loss(Fixed([2.0, 0.0, -1.0], [0.0, 0.0, 3.0]), nn.Identity(), np.array([0, 1]))
    right = [np.log1p(np.exp(-2)), np.log(2), np.log1p(np.exp(-1)), np.log(2), np.log(2)]
    assert loss.item() == pytest.approx((sum(right) + np.log1p(np.exp(3))) / 6)


def test_a_label_is_predicted_above_one_half(several):
    outputs = Fixed([1.0, -1.0, 0.0], [-1.0, 2.0, -1.0], [-1.0, -1.0, -1.0])
    scores = several.evaluate(outputs, nn.Identity())["test"]
    assert scores.columns["predicted"] == [["fast"], ["new"], []]
    assert scores.columns["label"] == [["fast", "old"], ["new"], []]
    assert scores.scores.tolist() == [0.0, 1.0, 1.0]
    # 2 of 2 predicted labels are right, and 2 of 3 expected ones are predicted.
    assert scores.metrics["micro_f1"] == 2 * 2 / (2 + 3)
    # `old` has no right one: (1 + 1 + 0) / 3.
    assert scores.metrics["macro_f1"] == pytest.approx(2 / 3)
    assert scores.metrics["subset_accuracy"] == pytest.approx(2 / 3)


@pytest.fixture
def task():
    def texts(split):
        return tuple(AnsweredText(f"{split}{v}", "the cat", v) for v in VALUES[split])

    return ExampleTask(task_info("sr", "spearman"), {split: texts(split) for split in VALUES})


@pytest.fixture
def encoded(task, tokenizer):
    return encode_task(task, tokenizer, protocol=FinetuneProtocol())


def test_targets_are_standardised_by_the_training_split(task, encoded):
    # Values 1 and 5: mean 3, deviation 2, so -1 and 1.
    assert standardisation(task) == (3.0, 2.0)
    loss = encoded.loss(Fixed([-1.0], [1.0]), nn.Identity(), np.array([0, 1]))
    assert loss.item() == 0.0
    loss = encoded.loss(Fixed([0.5], [-1.0]), nn.Identity(), np.array([1, 0]))
    assert loss.item() == pytest.approx(((0.5 - 1) ** 2 + 0) / 2)


def test_predictions_are_in_the_units_of_the_values(encoded):
    scores = encoded.evaluate(Fixed([-1.0], [1.5], [2.0]), nn.Identity())["test"]
    assert scores.columns["predicted"].tolist() == [1.0, 6.0, 7.0]
    assert scores.columns["value"].tolist() == [0.0, 6.0, 5.0]
    # Squared errors 1, 0 and 4, negated: more is better, as in all other kinds.
    assert scores.scores.tolist() == [-1.0, 0.0, -4.0]
    # Ranks 0, 2, 1 against 0, 1, 2: 1 - 6 * 2 / (3 * 8).
    assert scores.metrics["spearman"] == pytest.approx(0.5)
    expected = np.corrcoef([0, 6, 5], [1, 6, 7])[0, 1]
    assert scores.metrics["pearson"] == pytest.approx(expected)


def test_constant_predictions_score_zero(encoded):
    scores = encoded.evaluate(Fixed([0.3], [0.3], [0.3]), nn.Identity())
    assert scores["test"].metrics == {"spearman": 0.0, "pearson": 0.0}


def test_predictions_that_differ_by_rounding_are_constant(encoded):
    scores = encoded.evaluate(Fixed([0.3], [0.3000001], [0.2999999]), nn.Identity())
    assert scores["test"].metrics == {"spearman": 0.0, "pearson": 0.0}
    small = encoded.evaluate(Fixed([0.3], [0.30002], [0.30001]), nn.Identity())
    assert small["test"].metrics["spearman"] == pytest.approx(1)


def test_predictions_that_are_not_finite_are_no_scores(encoded):
    with pytest.raises(TrainingError, match="not finite"):
        encoded.evaluate(Fixed([0.3], [float("inf")], [0.3]), nn.Identity())
