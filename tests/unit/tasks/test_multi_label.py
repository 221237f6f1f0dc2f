"""Multi-label classification: metrics, and people's files."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from biphasic.analysis.scores.examples import metric_examples
from biphasic.errors import ConfigError, DataError
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.metrics import multi_label_scores
from custom_tasks import jsonl, refused, write_splits

LABELS = ("fast", "new", "old")
TABLE = "text,labels\nthe cat,new|fast\na dog,\nthe mat,old\n"


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


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_custom_files(store, custom, suffix):
    content = TABLE.replace(",", "\t") if suffix == ".tsv" else TABLE
    if suffix == ".jsonl":
        rows = [("the cat", ["new", "fast"]), ("a dog", []), ("the mat", ["old"])]
        content = jsonl(*({"text": text, "labels": labels} for text, labels in rows))
    write_splits(custom, suffix, content)
    task = store.task(f"ml:{custom}")
    assert (task.info.kind, task.info.metric, task.labels) == ("ml", "micro_f1", LABELS)
    assert [record.answer for record in task.splits["train"]] == [(1, 0), (), (2,)]


def test_labels_may_be_numbers_of_a_list(store, custom):
    (custom / "labels.json").write_text('["new", "old", "fast"]')
    write_splits(
        custom, ".jsonl", jsonl({"text": "a", "labels": [2, 0]}, {"text": "b", "labels": []})
    )
    assert store.task(f"ml:{custom}").splits["test"][0].answer == (2, 0)


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
