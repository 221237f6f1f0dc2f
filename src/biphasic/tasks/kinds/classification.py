"""Classification of a text, or of a pair of texts: one of several labels, or any of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from biphasic.facts import FIRST_KINDS
from biphasic.rows import Row
from biphasic.tasks.baselines import Baseline, bag_of_words, majority
from biphasic.tasks.kinds.examples import LABELS
from biphasic.tasks.kinds.kind import BY_LABEL, Predictions, SplitScores
from biphasic.tasks.kinds.text import TEMPLATE, Array, EncodedTexts, TextKind, pooled_outputs
from biphasic.tasks.records import AnsweredText, ExampleTask
from biphasic.tasks.rows.labels import Labels, found_labels, single_labels

if TYPE_CHECKING:
    from torch import Tensor

    from biphasic.tasks.finetuned import FinetunedModel


class _EncodedLabels(EncodedTexts):
    def mean_loss(self, outputs: Tensor, expected: Array) -> Tensor:
        import torch

        targets = torch.from_numpy(expected).to(outputs.device)
        return torch.nn.functional.cross_entropy(outputs, targets)

    def score(self, ids: tuple[str, ...], outputs: Array, expected: Array) -> SplitScores:
        """Score 1 for each correct label."""
        # numpy returns the first of equal maxima; torch does not guarantee which.
        return _score_labels(ids, outputs.argmax(axis=1), expected, self.labels)


def _score_labels(
    ids: tuple[str, ...], predicted: Array, expected: Array, labels: Sequence[str]
) -> SplitScores:
    from biphasic.tasks.metrics import accuracy, macro_f1, matthews

    metrics = {
        "accuracy": accuracy(expected, predicted),
        "macro_f1": macro_f1(expected, predicted),
        "matthews": matthews(expected, predicted),
    }
    correct = predicted == expected
    columns = {
        "correct": correct,
        "label": [labels[label] for label in expected.tolist()],
        "predicted": [labels[label] for label in predicted.tolist()],
    }
    return SplitScores(metrics, ids, correct.astype(np.float64), columns)


class Classification(TextKind):
    """One label per text; cross-entropy, accuracy."""

    name = "sc"
    facts = FIRST_KINDS["sc"]
    encoded = _EncodedLabels
    settings: ClassVar[tuple[str, ...]] = (TEMPLATE, LABELS)
    columns = ("id", "text", "label")
    answer = "label"
    usual_answers = (("label",),)
    predicted: ClassVar[Mapping[str, Any]] = {"label": str, "probabilities": BY_LABEL}
    does = "assigns one of {number} labels to a text"
    problem_type = "single_label_classification"
    baselines: ClassVar[Mapping[str, Baseline]] = {
        "floor:majority": majority,
        "reference:bag-of-words": partial(bag_of_words, kind="sc"),
    }

    def score_predictions(self, task: ExampleTask, split: str, predicted: Any) -> SplitScores:
        """Score labels by number."""
        examples = task.splits[split]
        expected = np.array([example.answer for example in examples])
        ids = tuple(example.id for example in examples)
        return _score_labels(ids, np.asarray(predicted), expected, task.labels)

    def parse(self, row: Row, *, labels: Sequence[str], template: str | None) -> AnsweredText:
        """Return a text and the number of its label."""
        label = row.value.get("label")
        if type(label) is not int or not 0 <= label < len(labels):
            raise row.error(f"unknown label {label!r}; labels.json has 0 to {len(labels) - 1}")
        return self.answered(row, template, label)

    def majority(self, task: ExampleTask) -> tuple[str, float]:
        """Return the most frequent label of the test split and its share."""
        examples = task.splits["test"]
        [(label, number)] = Counter(example.answer for example in examples).most_common(1)
        return task.labels[label], number / len(examples)

    def found_labels(self, rows: Sequence[Row], *, source: str) -> Labels:
        """Return the labels, sorted."""
        return found_labels(rows, "label", source=source)

    def canonical(self, row: Row, labels: Labels | None) -> dict[str, Any]:
        """Return the label as a number."""
        return {"label": labels.number(row, "label")} if labels else {}

    def predict(self, finetuned: FinetunedModel, examples: Sequence[str]) -> Predictions:
        """Return the most probable label."""
        from scipy.special import softmax

        logits, num_cut = pooled_outputs(finetuned, examples)
        labels = finetuned.record.labels
        best = logits.argmax(axis=1).tolist()
        rows = [
            {"label": labels[number], "probabilities": dict(zip(labels, shares, strict=True))}
            for number, shares in zip(best, softmax(logits, axis=1).tolist(), strict=True)
        ]
        return rows, num_cut


class _EncodedLabelSets(EncodedTexts):
    def expect(self, example: AnsweredText) -> NDArray[np.bool_]:
        return np.isin(np.arange(len(self.labels)), example.answer)

    def mean_loss(self, outputs: Tensor, expected: Array) -> Tensor:
        import torch

        targets = torch.from_numpy(expected.astype(np.float32)).to(outputs.device)
        return torch.nn.functional.binary_cross_entropy_with_logits(outputs, targets)

    def score(self, ids: tuple[str, ...], outputs: Array, expected: Array) -> SplitScores:
        """Score 1 for each text whose labels are all correct."""
        return _score_label_sets(ids, outputs > 0, expected, self.labels)


def _score_label_sets(
    ids: tuple[str, ...], predicted: Array, expected: Array, labels: Sequence[str]
) -> SplitScores:
    from biphasic.tasks.metrics import multi_label_scores

    correct = (predicted == expected).all(axis=1)
    columns = {
        "correct": correct,
        "label": _named(expected, labels),
        "predicted": _named(predicted, labels),
        "num_labels": expected.sum(axis=1),
        "num_predicted": predicted.sum(axis=1),
        "num_right": (predicted & expected).sum(axis=1),
    }
    metrics = multi_label_scores(expected, predicted)
    return SplitScores(metrics, ids, correct.astype(np.float64), columns)


class MultiLabel(TextKind):
    """Any labels per text; a sigmoid each, and those above one half are predicted."""

    name = "ml"
    facts = FIRST_KINDS["ml"]
    encoded = _EncodedLabelSets
    settings: ClassVar[tuple[str, ...]] = (TEMPLATE, LABELS)
    columns = ("id", "text", "labels")
    answer = "labels"
    usual_answers = (("labels",), ("label",))
    predicted: ClassVar[Mapping[str, Any]] = {"labels": [str], "probabilities": BY_LABEL}
    does = "assigns any of {number} labels to a text"
    problem_type = "multi_label_classification"
    baselines: ClassVar[Mapping[str, Baseline]] = {
        "floor:majority": majority,
        "reference:bag-of-words": partial(bag_of_words, kind="ml"),
    }
    output_note = "A label applies if its output is above 0, a probability above one half."

    def score_predictions(self, task: ExampleTask, split: str, predicted: Any) -> SplitScores:
        """Score sets of labels: their numbers, or a truth value for each label."""
        examples, numbers = task.splits[split], np.arange(len(task.labels))
        expected = np.array([np.isin(numbers, example.answer) for example in examples])
        if not isinstance(predicted, np.ndarray):
            predicted = np.array([np.isin(numbers, one) for one in predicted])
        ids = tuple(example.id for example in examples)
        return _score_label_sets(ids, predicted.astype(np.bool_), expected, task.labels)

    def parse(self, row: Row, *, labels: Sequence[str], template: str | None) -> AnsweredText:
        """Return a text and the numbers of its labels."""
        numbers = row.items("labels", int)
        for number in numbers:
            if not 0 <= number < len(labels):
                raise row.error(f"unknown label {number}; labels.json has 0 to {len(labels) - 1}")
            if numbers.count(number) > 1:
                raise row.error(f"the label {number} ('{labels[number]}') is given twice")
        return self.answered(row, template, tuple(numbers))

    def found_labels(self, rows: Sequence[Row], *, source: str) -> Labels:
        """Return the labels, sorted."""
        singles = (single for row in rows for single in single_labels(row, "labels"))
        return found_labels(singles, "labels", source=source)

    def canonical(self, row: Row, labels: Labels | None) -> dict[str, Any]:
        """Return the labels as numbers."""
        if not labels:
            return {}
        singles = single_labels(row, "labels")
        return {"labels": [labels.number(single, "labels") for single in singles]}

    def predict(self, finetuned: FinetunedModel, examples: Sequence[str]) -> Predictions:
        """Return the labels with a probability above one half."""
        from scipy.special import expit

        logits, num_cut = pooled_outputs(finetuned, examples)
        names = finetuned.record.labels
        rows = [
            {"labels": labels, "probabilities": dict(zip(names, shares, strict=True))}
            for labels, shares in zip(
                _named(logits > 0, names), expit(logits).tolist(), strict=True
            )
        ]
        return rows, num_cut


def _named(holds: NDArray[np.bool_], names: Sequence[str]) -> list[list[str]]:
    return [[names[label] for label in np.flatnonzero(row).tolist()] for row in holds]
