"""Multi-label classification: all labels of a text, each by a sigmoid of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score
from torch import nn

from biphasic.analysis.scores.examples import metric_examples
from biphasic.errors import ConfigError, DataError
from biphasic.tasks.kinds.metrics import multi_label_scores
from biphasic.tasks.kinds.multi_label import encode_multi_label
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import METRICS_BY_KIND, MultiLabelTask, MultiLabelText, TaskInfo
from custom_tasks import jsonl, refused, write_splits

INFO = TaskInfo("t", "ml", "T", "micro_f1", "0" * 64)
LABELS = ("fast", "new", "old")
SPLITS = {"train": ((0, 1), ()), "validation": ((2,),), "test": ((0, 2), (1,), ())}
TABLE = "text,labels\nthe cat,new|fast\na dog,\nthe mat,old\n"


class Fixed:
    """An encoder whose states are the head's outputs."""

    device = torch.device("cpu")

    def __init__(self, *outputs):
        self.outputs = torch.tensor(outputs)

    def states(self, sequences):
        places = np.arange(len(sequences))
        return self.outputs, np.stack([places, places + 1], axis=1)

    def pooled(self, sequences):
        return self.outputs[: len(sequences)]


@pytest.fixture
def encoded(tokenizer):
    splits = {
        split: tuple(MultiLabelText(f"{n}", "the cat", labels) for n, labels in enumerate(rows))
        for split, rows in SPLITS.items()
    }
    return encode_multi_label(
        MultiLabelTask(INFO, LABELS, splits), tokenizer, protocol=FinetuneProtocol()
    )


def test_the_loss_is_the_mean_over_texts_and_labels(encoded):
    loss = encoded.loss(Fixed([2.0, 0.0, -1.0], [0.0, 0.0, 3.0]), nn.Identity(), np.array([0, 1]))
    right = [np.log1p(np.exp(-2)), np.log(2), np.log1p(np.exp(-1)), np.log(2), np.log(2)]
    assert loss.item() == pytest.approx((sum(right) + np.log1p(np.exp(3))) / 6)


def test_a_label_is_predicted_above_one_half(encoded):
    outputs = Fixed([1.0, -1.0, 0.0], [-1.0, 2.0, -1.0], [-1.0, -1.0, -1.0])
    scores = encoded.evaluate(outputs, nn.Identity())["test"]
    assert scores.columns["predicted"] == [["fast"], ["new"], []]
    assert scores.columns["label"] == [["fast", "old"], ["new"], []]
    assert scores.scores.tolist() == [0.0, 1.0, 1.0]
    # 2 of 2 predicted labels are right, and 2 of 3 expected ones are found.
    assert scores.metrics["micro_f1"] == 2 * 2 / (2 + 3)
    # `old` has no right one: (1 + 1 + 0) / 3.
    assert scores.metrics["macro_f1"] == pytest.approx(2 / 3)
    assert scores.metrics["subset_accuracy"] == pytest.approx(2 / 3)


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
    for metric in METRICS_BY_KIND["ml"]:
        assert metric_examples(metric, columns).value == pytest.approx(scores[metric])


def test_no_label_at_all_scores_zero():
    none = np.zeros((3, 2), dtype=np.bool_)
    expected = {"micro_f1": 0.0, "macro_f1": 0.0, "subset_accuracy": 1.0}
    assert multi_label_scores(none, none) == expected
    columns = {"label": [[], [], []], "predicted": [[], [], []]}
    assert metric_examples("macro_f1", columns).value == 0.0


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_custom_files(store, custom, suffix):
    content = TABLE.replace(",", "\t") if suffix == ".tsv" else TABLE
    if suffix == ".jsonl":
        rows = [("the cat", ["new", "fast"]), ("a dog", []), ("the mat", ["old"])]
        content = jsonl(*({"text": text, "labels": labels} for text, labels in rows))
    write_splits(custom, suffix, content)
    task = store.task(f"ml:{custom}")
    assert (task.info.kind, task.info.metric, task.labels) == ("ml", "micro_f1", LABELS)
    assert [record.labels for record in task.splits["train"]] == [(1, 0), (), (2,)]


def test_labels_may_be_numbers_of_a_list(store, custom):
    (custom / "labels.json").write_text('["new", "old", "fast"]')
    write_splits(
        custom, ".jsonl", jsonl({"text": "a", "labels": [2, 0]}, {"text": "b", "labels": []})
    )
    assert store.task(f"ml:{custom}").splits["test"][0].labels == (2, 0)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"labels": ["new", "new"]}, r"test.jsonl:1: the label 1 \('new'\) is given twice"),
        ({"labels": ["nwe"]}, r"test.jsonl:1: unknown label 'nwe'; .*did you mean 'new'"),
        ({"labels": 3}, "test.jsonl:1: 'labels' must be a list of labels, not 3"),
        ({"labels": "fast| new"}, "test.jsonl:1: the label ' new' has spaces around it"),
        ({"labels": "fast|"}, "test.jsonl:1: the label is empty"),
    ],
)
def test_labels_that_cannot_be_used(store, custom, row, message):
    good = jsonl({"text": "a", "labels": ["fast", "new"]})
    write_splits(custom, ".jsonl", {"train": good, "test": jsonl({"text": "a", **row})})
    refused(store, f"ml:{custom}", message, DataError)


def test_a_training_split_needs_two_labels(store, custom):
    write_splits(custom, ".jsonl", jsonl({"text": "a", "labels": ["new"]}))
    refused(store, f"ml:{custom}", "the training split: expected at least two", DataError)


def test_columns_of_other_kinds_are_refused(store, custom):
    write_splits(custom, ".csv", TABLE)
    (custom / "task.yaml").write_text("kind: ml\nfolder: .\ncolumns: {label: labels}\n")
    refused(store, custom / "task.yaml", "a task of kind ml has no such column", ConfigError)
