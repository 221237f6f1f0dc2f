"""Classification of a text, or of a pair of texts: one of several labels, or any of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AliasChoices, Field, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass

from biphasic.facts import FIRST_KINDS
from biphasic.rows import Row
from biphasic.tasks.baselines import Baseline, bag_of_words, majority
from biphasic.tasks.kinds.examples import FIELDS, LABELS, RecordFiles
from biphasic.tasks.kinds.kind import BY_LABEL, Facts, Predictions, SplitScores, TaskKind
from biphasic.tasks.kinds.text import TEMPLATE, AnsweredText, Array, TextLearner, pooled_outputs
from biphasic.tasks.records import ExampleTask
from biphasic.tasks.rows import Labels, found_labels, single_labels

if TYPE_CHECKING:
    from torch import Tensor

    from biphasic.tasks.encoding import FinetunedModel


@dataclass(frozen=True, slots=True, config=FIELDS)
class LabelledText(AnsweredText):
    """A text and the number of its label."""

    settings: ClassVar[tuple[str, ...]] = (TEMPLATE, LABELS)
    answer: Annotated[Any, Field(validation_alias="label")]

    @field_validator("answer", mode="before")
    @classmethod
    def _is_known(cls, label: Any, info: ValidationInfo) -> Any:
        if info.context and (type(label) is not int or not 0 <= label < len(info.context.labels)):
            last = len(info.context.labels) - 1
            raise ValueError(f"unknown label {label!r}; labels.json has 0 to {last}")
        return label

    @classmethod
    def labels_in(cls, rows: Sequence[Row], *, source: str) -> Labels:
        return found_labels(rows, "label", source=source)

    @classmethod
    def written(cls, row: Row, labels: Labels | None) -> dict[str, Any]:
        return {"label": labels.number(row, "label")} if labels else {}


class LabelLearner(TextLearner):
    """Cross-entropy of labels."""

    predicted: ClassVar[Mapping[str, Any]] = {
        "label": str, "score": float, "probabilities": BY_LABEL
    }  # fmt: skip

    def mean_loss(self, outputs: Tensor, expected: Array) -> Tensor:
        import torch

        targets = torch.from_numpy(expected).to(outputs.device)
        return torch.nn.functional.cross_entropy(outputs, targets)

    def decide(self, outputs: Array) -> Array:
        """Return the number of the most probable label."""
        # numpy returns the first of equal maxima; torch does not guarantee which.
        return outputs.argmax(axis=1)

    @classmethod
    def score(cls, task: ExampleTask, split: str, predicted: Any) -> SplitScores:
        """Score labels by number: 1 for each correct one."""
        from biphasic.tasks.metrics import accuracy, macro_f1, matthews

        expected, predicted = cls.answers(task, split), np.asarray(predicted)
        metrics = {
            "accuracy": accuracy(expected, predicted),
            "macro_f1": macro_f1(expected, predicted),
            "matthews": matthews(expected, predicted),
        }
        correct = predicted == expected
        columns = {
            "correct": correct,
            "label": [task.labels[label] for label in expected.tolist()],
            "predicted": [task.labels[label] for label in predicted.tolist()],
        }
        return SplitScores(metrics, task.ids(split), correct.astype(np.float64), columns)

    @classmethod
    def predict(cls, finetuned: FinetunedModel, examples: Sequence[str]) -> Predictions:
        from scipy.special import softmax

        logits, cut = pooled_outputs(finetuned, examples)
        labels = finetuned.record.labels
        best = logits.argmax(axis=1).tolist()
        rows = [
            {
                "label": labels[number],
                "score": shares[number],
                "probabilities": dict(zip(labels, shares, strict=True)),
            }
            for number, shares in zip(best, softmax(logits, axis=1).tolist(), strict=True)
        ]
        return rows, cut


class Classification(TaskKind):
    """One label per text; cross-entropy, accuracy."""

    name = "sc"
    examples = RecordFiles(LabelledText)
    learner = LabelLearner
    facts = Facts(
        **vars(FIRST_KINDS["sc"]),
        is_pooled=True,
        does="assigns one of {number} labels to a text",
        problem_type="single_label_classification",
    )
    baselines: ClassVar[Mapping[str, Baseline]] = {
        "floor:majority": majority,
        "reference:bag-of-words": partial(bag_of_words, kind="sc"),
    }


@dataclass(frozen=True, slots=True, config=FIELDS)
class ManyLabelledText(AnsweredText):
    """A text and the numbers of its labels."""

    settings: ClassVar[tuple[str, ...]] = (TEMPLATE, LABELS)
    answer: Annotated[Any, Field(validation_alias=AliasChoices("labels", "label"))]

    @field_validator("answer", mode="before")
    @classmethod
    def _are_known(cls, numbers: Any, info: ValidationInfo) -> Any:
        if info.context is None:
            return numbers
        labels = info.context.labels
        for number in info.context.row.items("labels", int):
            if not 0 <= number < len(labels):
                raise ValueError(f"unknown label {number}; labels.json has 0 to {len(labels) - 1}")
            if numbers.count(number) > 1:
                raise ValueError(f"the label {number} ('{labels[number]}') is given twice")
        return tuple(numbers)

    @classmethod
    def labels_in(cls, rows: Sequence[Row], *, source: str) -> Labels:
        singles = (single for row in rows for single in single_labels(row, "labels"))
        return found_labels(singles, "labels", source=source)

    @classmethod
    def written(cls, row: Row, labels: Labels | None) -> dict[str, Any]:
        if not labels:
            return {}
        singles = single_labels(row, "labels")
        return {"labels": [labels.number(single, "labels") for single in singles]}


class LabelSetLearner(TextLearner):
    """A sigmoid for each label; those above one half are predicted."""

    predicted: ClassVar[Mapping[str, Any]] = {"labels": [str], "probabilities": BY_LABEL}

    @classmethod
    def answers(cls, task: ExampleTask, split: str) -> NDArray[np.bool_]:
        return _as_sets([example.answer for example in task.splits[split]], len(task.labels))

    def mean_loss(self, outputs: Tensor, expected: Array) -> Tensor:
        import torch

        targets = torch.from_numpy(expected.astype(np.float32)).to(outputs.device)
        return torch.nn.functional.binary_cross_entropy_with_logits(outputs, targets)

    def decide(self, outputs: Array) -> Array:
        """Return a truth value for each label."""
        return outputs > 0

    @classmethod
    def score(cls, task: ExampleTask, split: str, predicted: Any) -> SplitScores:
        """Score numbers of labels, or truth values: 1 if all labels of a text are correct."""
        from biphasic.tasks.metrics import multi_label_scores

        expected = cls.answers(task, split)
        if not isinstance(predicted, np.ndarray):
            predicted = _as_sets(predicted, len(task.labels))
        predicted = predicted.astype(np.bool_)
        correct = (predicted == expected).all(axis=1)
        columns = {
            "correct": correct,
            "label": _named(expected, task.labels),
            "predicted": _named(predicted, task.labels),
            "num_labels": expected.sum(axis=1),
            "num_predicted": predicted.sum(axis=1),
            "num_right": (predicted & expected).sum(axis=1),
        }
        metrics = multi_label_scores(expected, predicted)
        return SplitScores(metrics, task.ids(split), correct.astype(np.float64), columns)

    @classmethod
    def predict(cls, finetuned: FinetunedModel, examples: Sequence[str]) -> Predictions:
        from scipy.special import expit

        logits, cut = pooled_outputs(finetuned, examples)
        names = finetuned.record.labels
        both = zip(_named(logits > 0, names), expit(logits).tolist(), strict=True)
        rows = [
            {"labels": labels, "probabilities": dict(zip(names, shares, strict=True))}
            for labels, shares in both
        ]
        return rows, cut


class MultiLabel(TaskKind):
    """Any labels per text; a sigmoid each, and those above one half are predicted."""

    name = "ml"
    examples = RecordFiles(ManyLabelledText)
    learner = LabelSetLearner
    facts = Facts(
        **vars(FIRST_KINDS["ml"]),
        is_pooled=True,
        does="assigns any of {number} labels to a text",
        output_note="A label applies if its output is above 0, a probability above one half.",
        problem_type="multi_label_classification",
    )
    baselines: ClassVar[Mapping[str, Baseline]] = {
        "floor:majority": majority,
        "reference:bag-of-words": partial(bag_of_words, kind="ml"),
    }


def _as_sets(answers: Sequence[Sequence[int]], num_labels: int) -> NDArray[np.bool_]:
    return np.array([np.isin(np.arange(num_labels), answer) for answer in answers])


def _named(holds: NDArray[np.bool_], names: Sequence[str]) -> list[list[str]]:
    return [[names[label] for label in np.flatnonzero(row).tolist()] for row in holds]
