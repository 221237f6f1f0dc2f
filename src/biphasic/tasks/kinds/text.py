"""Kinds with one answer per text: a linear head on the mean of its states; classification."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AliasChoices, Field, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass

from biphasic.errors import DataError
from biphasic.facts import FIRST_KINDS
from biphasic.rows import Row
from biphasic.tasks.baselines import Baseline, bag_of_words, majority
from biphasic.tasks.kinds.examples import (
    FIELDS,
    LABELS,
    Example,
    Parsing,
    RecordFiles,
    known_columns,
    usual_columns,
)
from biphasic.tasks.kinds.kind import BY_LABEL, Facts, Learner, Predictions, SplitScores, TaskKind
from biphasic.tasks.labels_and_qrels import Labels, found_labels, single_labels
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import (
    PAIR_TEMPLATE,
    ExampleTask,
    FileSettings,
    HeadRecord,
    TaskSettings,
    fill,
    template_fields,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from biphasic.data.packing import TokenIds
    from biphasic.data.tokens.tokenizer import TextTokenizer
    from biphasic.tasks.encoding import Encoder, FinetunedModel

TEMPLATE = "template"  # setting of kinds that join the fields of an example into one text
_PAIR = ("text_a", "text_b")
USUAL_TEXTS = (
    ("text",),
    ("sentence",),
    _PAIR,
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
)  # usual column names of single texts and of pairs
Array = NDArray[Any]


@dataclass(frozen=True, slots=True, config=FIELDS)
class AnsweredText(Example):
    """A text, or a pair already joined into one text, and what is to be predicted of it."""

    settings: ClassVar[tuple[str, ...]] = (TEMPLATE,)
    paired: ClassVar[Collection[str]] = ("text",)
    text: str
    answer: Any  # the number of its label, those of its labels (possibly none), or a real number
    # The two texts of a pair that the usual template joins.
    pair: Annotated[tuple[str, ...], Field(exclude=True)] = ()

    @classmethod
    def given(cls, where: Parsing) -> dict[str, Any]:
        row, pair = where.row, ()
        if where.template is not None:
            text = fill(where.template, row)
        elif "text_a" in row.value:
            pair = row.text("text_a"), row.text("text_b")
            text = PAIR_TEMPLATE.format(text_a=pair[0], text_b=pair[1])
        else:
            text = row.text("text")
        value = {name: row.value[name] for name in known_columns(cls) if name in row.value}
        return {**value, "text": text, "pair": pair}

    @classmethod
    def choose(cls, there: Collection[str], path: Path, file: FileSettings) -> dict[str, str]:
        fields = template_fields(file.template) if file.template is not None else ()
        column: Any = file.columns.get("text")
        if column is not None:
            chosen = named_columns(column)
        elif fields and all(field in there for field in fields):
            chosen = {}
        else:
            chosen = named_columns(usual_columns(USUAL_TEXTS, there, path=path))
        # A template may name any column; columns that it omits are not part of the text.
        chosen = {field: chosen.get(field, field) for field in fields} or chosen
        for name, usual in cls.columns().items():
            if name != "text":
                own = file.columns.get(name)
                options = [(column,) for column in usual]
                [column] = (own,) if own else usual_columns(options, there, path=path)
                if column in fields:
                    raise DataError(f"{path}:1: a template must not name {{{column}}}: the answer")
                chosen[name] = str(column)
        return chosen

    @classmethod
    def check_splits(cls, splits: Mapping[str, Sequence[Row]]) -> None:
        """Check that either all splits have pairs or none do."""
        learnt = next(iter(splits.values()))[0]
        for split, (first, *_) in splits.items():
            if ("text_a" in first.value) != ("text_a" in learnt.value):
                units = ("pairs of texts", "single texts")
                here, there = units if "text_a" in first.value else reversed(units)
                raise first.error(f"the {split} split has {here}, but {learnt.path} has {there}")

    @classmethod
    def details(cls, first: Row, description: TaskSettings) -> dict[str, Any]:
        if (template := description.template) is not None:
            return {"fields": template_fields(template), "template": template}
        fields = _PAIR if "text_a" in first.value else ("text",)
        return {"fields": fields, "has_pairs": fields == _PAIR}

    @classmethod
    def asked(cls, row: Row, record: HeadRecord) -> str:
        if record.template is None and record.fields != _PAIR:
            return row.text("text")
        return fill(record.template or PAIR_TEMPLATE, row)


def named_columns(columns: str | Sequence[str]) -> dict[str, str]:
    """Return the columns of a text or of a pair by field."""
    names = (columns,) if isinstance(columns, str) else columns
    return dict(zip(_PAIR if len(names) == 2 else ("text",), names, strict=False))


class TextLearner(Learner):
    """Texts with one answer each; `expected` are answers by split."""

    def encode(self, task: ExampleTask) -> None:
        self.task = task.held_out()
        self.num_outputs = max(len(task.labels), 1)
        self.sequences, self.expected = {}, {}
        self.sides: dict[str, list[list[TokenIds]]] = {}
        for split, examples in task.splits.items():
            self.expected[split] = self.answers(task, split)
            self.sequences[split] = self.framed([example.text for example in examples], split)
            if self.protocol.is_probe and task.info.has_pairs:
                # `frozen` joins four vectors for a pair. Both sides are framed anew, so cuts are
                # counted again.
                self.num_truncated[split], self.states_read = 0, 4
                sides = zip(*(example.pair for example in examples), strict=True)
                self.sides[split] = [self.framed(side, split) for side in sides]
        self.trained_sequences = self.sequences.get("train", [])
        self.num_train = len(self.trained_sequences)

    @classmethod
    def answers(cls, task: ExampleTask, split: str) -> Array:
        """Return the answers of a split as outputs have them."""
        return np.array([example.answer for example in task.splits[split]])

    @abstractmethod
    def mean_loss(self, outputs: Tensor, expected: Array) -> Tensor:
        """Return the mean loss of outputs, [num_texts, num_outputs]."""

    @abstractmethod
    def decide(self, outputs: Array) -> Array:
        """Return the answers that outputs mean, [num_texts, num_outputs], for `score`."""

    def loss(self, encoder: Encoder, head: nn.Module, indices: NDArray[np.int64]) -> Tensor:
        """Return the mean loss over the training texts `indices`."""
        from biphasic.model.compute.forward import pooled

        hidden, spans = encoder.states([self.trained_sequences[index] for index in indices])
        return self.mean_loss(head(pooled(hidden, spans)), self.expected["train"][indices])

    def evaluate(self, encoder: Encoder, head: nn.Module) -> dict[str, SplitScores]:
        """Score validation and test."""
        return {
            split: self.score_outputs(
                split, head(encoder.pooled(self.sequences[split])).cpu().numpy()
            )
            for split in self.scored
        }

    def score_outputs(self, split: str, outputs: Array) -> SplitScores:
        return self.score(self.task, split, self.decide(outputs))

    def frozen(self, encoder: Encoder, split: str, chosen: Array | None = None) -> Tensor:
        """Return the mean states of texts; of a pair u, v, |u - v| and u * v.

        Reference: Conneau et al. 2017, section 3.1, arXiv:1705.02364.
        """
        import torch

        indices = np.arange(len(self.expected[split])) if chosen is None else chosen
        means = [
            encoder.pooled([sequences[index] for index in indices]).unflatten(
                1, (max(1, len(encoder.layers)), -1)
            )
            for sequences in self.sides.get(split, [self.sequences[split]])
        ]
        if len(means) == 1:
            return means[0]
        u, v = means
        return torch.cat([u, v, (u - v).abs(), u * v], dim=2)

    def targets(self, split: str, chosen: Array | None = None) -> Array:
        answers = self.expected[split]
        return answers if chosen is None else answers[chosen]

    @classmethod
    def is_cut(cls, finetuned: FinetunedModel, examples: Sequence[str]) -> list[bool]:
        from biphasic.tasks.encoding import are_long

        room = finetuned.protocol.max_seqlen - 2  # without BOS and EOS
        return are_long(examples, finetuned.tokenizer.encode_many, room=room)

    @classmethod
    def head_fields(
        cls, task: ExampleTask, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
    ) -> dict[str, Any]:
        return {name: getattr(task, name) for name in ("labels", "fields", "columns", "template")}


def pooled_outputs(
    finetuned: FinetunedModel, texts: Sequence[str]
) -> tuple[NDArray[np.float64], list[bool]]:
    """Return the head's outputs for texts, [num_texts, num_outputs], and which were cut."""
    from biphasic.tasks.encoding import over_windows

    encoded, how = finetuned.tokenizer.encode_many(texts), finetuned.long_texts
    windows = [[sequence for _, sequence in finetuned.windows(ids)] for ids in encoded]
    cut = [how not in {"mean", "max"} and len(of_text) > 1 for of_text in windows]
    windows = [
        of_text[: 1 if is_cut else None] for of_text, is_cut in zip(windows, cut, strict=True)
    ]
    # In double precision the probabilities of a text add up to one.
    outputs = finetuned.head(finetuned.encoder.pooled([*chain(*windows)])).cpu().double()
    if len(outputs) > len(texts):
        outputs = over_windows(outputs, windows, str(how))
    return outputs.numpy(), cut


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
        # Its sigmoid is then above one half.
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
