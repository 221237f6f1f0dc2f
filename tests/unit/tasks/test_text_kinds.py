"""Kinds with one output vector per text: labels, sets of labels and numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score
from torch import nn

from biphasic.analysis.scores.examples import metric_examples
from biphasic.errors import DataError, TrainingError
from biphasic.rows import Row
from biphasic.tasks.finetune import encode_task
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.kinds.similarity import standardisation
from biphasic.tasks.kinds.text import AnsweredText
from biphasic.tasks.labels_and_qrels import Labels, found_labels, found_tags
from biphasic.tasks.metrics import multi_label_scores
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS, ExampleTask
from custom_tasks import task_info

PATH = Path("train.csv")


def row(label: Any, number: int = 1) -> Row:
    return Row(PATH, number, {"label": label})


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["b", "a", "b"], ("a", "b")),
        (["10", "9", "-1"], ("-1", "9", "10")),
        ([10, 9], ("9", "10")),
        (["10", "9", "x"], ("10", "9", "x")),
        (["very good", "bad"], ("bad", "very good")),
    ],
)
def test_labels_of_a_training_split_are_sorted(values, names):
    assert found_labels([row(value) for value in values], "label", source="train").names == names


@pytest.mark.parametrize(
    ("names", "is_numbered", "values"),
    [
        # Names as they are, and positions as numbers or in text files.
        (("bad", "good"), False, {"good": 1, 1: 1, "1": 1}),
        (("bad", "good"), True, {"good": 1, 1: 1, "1": 1}),
        # Where names are numbers, a number is a name, ...
        (("1", "2", "3"), False, {"1": 0, 1: 0, 3: 2, "3": 2}),
        # ... but labels.json numbers labels, as in a task folder.
        (("1", "2", "3"), True, {0: 0, 1: 1, "1": 0}),
    ],
)
def test_numbers_and_names(names, is_numbered, values):
    labels = Labels(names, "labels.json", is_numbered)
    assert {value: labels.number(row(value), "label") for value in values} == values


def test_numbers_are_no_positions_among_names_that_nobody_listed():
    found = found_labels([row("yes"), row("no")], "label", source="the training split")
    assert found.number(row("yes"), "label") == 1
    for value in (0, "1"):
        with pytest.raises(DataError, match=rf"train.csv:1: the label {value} is a number, but "):
            found.number(row(value), "label")


def test_tags_of_a_training_split_have_both_sides_of_every_type():
    rows = [Row(PATH, 1, {"tags": ["O", "B-PER"]}), Row(PATH, 2, {"tags": ["B-LOC", "I-LOC"]})]
    assert found_tags(rows, source="train").names == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    with pytest.raises(DataError, match="tag 3 at token 1 "):
        found_tags([Row(PATH, 1, {"tags": ["O", 3]})], source="train")


@pytest.mark.parametrize("seed", range(4))
def test_metrics_are_those_of_scikit_learn_and_of_single_examples(seed):
    draw = np.random.default_rng(seed)
    expected, predicted = draw.random((2, 40, 5)) < draw.choice([0.02, 0.3, 0.7])
    expected[0, 0] = True
    scores = multi_label_scores(expected, predicted)
    assert scores["micro_f1"] == f1_score(expected, predicted, average="micro", zero_division=0)
    used = (expected | predicted).any(axis=0)
    assert scores["macro_f1"] == f1_score(
        expected[:, used], predicted[:, used], average="macro", zero_division=0
    )
    assert scores["subset_accuracy"] == accuracy_score(expected, predicted)
    columns = {
        "correct": (expected == predicted).all(axis=1),
        "label": [[str(n) for n in np.flatnonzero(row)] for row in expected],
        "predicted": [[str(n) for n in np.flatnonzero(row)] for row in predicted],
        "num_labels": expected.sum(axis=1),
        "num_predicted": predicted.sum(axis=1),
        "num_right": (expected & predicted).sum(axis=1),
    }
    for metric in KINDS["ml"].facts.metric_keys:
        assert metric_examples(metric, columns).value == pytest.approx(scores[metric])


def test_no_label_at_all_scores_zero():
    none = np.zeros((3, 2), dtype=np.bool_)
    expected = {"micro_f1": 0.0, "macro_f1": 0.0, "subset_accuracy": 1.0}
    assert multi_label_scores(none, none) == expected
    columns = {"label": [[], [], []], "predicted": [[], [], []]}
    assert metric_examples("macro_f1", columns).value == 0.0


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
