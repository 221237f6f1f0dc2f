"""Kinds with one answer per text: a linear head on the mean of its states."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from biphasic.rows import Row
from biphasic.tasks.kinds.examples import FIELDS, Example, Parsing, known_columns, usual_columns
from biphasic.tasks.kinds.kind import Learner, SplitScores
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
        from biphasic.tasks.encoding import mean_pool

        hidden, spans = encoder.states([self.trained_sequences[index] for index in indices])
        return self.mean_loss(head(mean_pool(hidden, spans)), self.expected["train"][indices])

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
    def head_fields(
        cls, task: ExampleTask, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
    ) -> dict[str, Any]:
        return {name: getattr(task, name) for name in ("labels", "fields", "columns", "template")}


def pooled_outputs(
    finetuned: FinetunedModel, texts: Sequence[str]
) -> tuple[NDArray[np.float64], list[bool]]:
    """Return the head's outputs for texts, [num_texts, num_outputs], and which were cut."""
    from biphasic.tasks.encoding import encode_texts

    longest = finetuned.protocol.max_seqlen
    sequences, cut = encode_texts(texts, finetuned.tokenizer, max_seqlen=longest)
    # In double precision the probabilities of a text add up to one.
    outputs = finetuned.head(finetuned.encoder.pooled(sequences)).cpu().double().numpy()
    return outputs, cut
