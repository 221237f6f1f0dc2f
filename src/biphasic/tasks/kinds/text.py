"""Kinds with one answer per text: a linear head on the mean of its states."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from biphasic.rows import Row, rows
from biphasic.tasks.kinds.examples import ExampleKind, usual_columns
from biphasic.tasks.kinds.kind import EncodedTask, SplitScores
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS, AnsweredText, ExampleTask, TaskInfo
from biphasic.tasks.rows.splits import USUAL_TEXTS
from biphasic.tasks.rows.templates import PAIR_TEMPLATE, fill, template_fields

if TYPE_CHECKING:
    from torch import Tensor, nn

    from biphasic.data.packing import TokenIds
    from biphasic.data.tokens.tokenizer import TextTokenizer
    from biphasic.tasks.encoding import Encoder
    from biphasic.tasks.finetuned import FinetunedModel, HeadRecord
    from biphasic.tasks.folder import TaskDescription
    from biphasic.tasks.task_file import TaskFile

TEMPLATE = "template"  # setting of kinds that join the fields of an example into one text
_PAIR = ("text_a", "text_b")
Array = NDArray[Any]


class TextKind(ExampleKind):
    """A kind with one answer per text, or per pair of texts joined by a template."""

    settings: ClassVar[tuple[str, ...]] = (TEMPLATE,)
    paired_columns: ClassVar[Collection[str]] = ("text",)
    is_pooled: ClassVar[bool] = True
    is_probed: ClassVar[bool] = True
    form: ClassVar[Any] = "sequence-classification"
    answer: ClassVar[str]  # its field
    usual_answers: ClassVar[tuple[tuple[str, ...], ...]]  # usual names of its column

    def text(self, row: Row, template: str | None) -> str:
        """Return the text of a row, its fields joined."""
        if template is not None:
            return fill(template, row)
        return fill(PAIR_TEMPLATE, row) if "text_a" in row.value else row.text("text")

    def answered(self, row: Row, template: str | None, answer: Any) -> AnsweredText:
        """Return the example in a row, with both texts if it is a pair without a template."""
        is_pair = template is None and "text_a" in row.value
        pair = tuple(map(row.text, _PAIR)) if is_pair else ()
        return AnsweredText(row.id(), self.text(row, template), answer, pair)

    def choose_columns(self, there: Collection[str], path: Path, file: TaskFile) -> dict[str, str]:
        """Return the columns of the texts and of the answer."""
        chosen = _text_columns(there, path, file)
        given = file.columns.get(self.answer)
        answer = str(given) if given else usual_columns(self.usual_answers, there, path=path)[0]
        return {**chosen, self.answer: answer}

    def check_same_fields(self, splits: Mapping[str, Sequence[Row]]) -> None:
        """Check that either all splits have pairs or none do."""
        learnt = next(iter(splits.values()))[0]
        for split, (first, *_) in splits.items():
            if ("text_a" in first.value) != ("text_a" in learnt.value):
                units = ("pairs of texts", "single texts")
                here, there = units if "text_a" in first.value else reversed(units)
                raise first.error(f"the {split} split has {here}, but {learnt.path} has {there}")

    def read(
        self, folder: Path, description: TaskDescription, info: TaskInfo, files: Collection[str]
    ) -> ExampleTask:
        """Read the texts of a task folder, and how their fields are joined."""
        task = super().read(folder, description, info, files)
        if description.template is not None:
            fields = template_fields(description.template)
        else:
            first = next(rows(folder / f"{next(iter(task.splits))}.jsonl"))
            fields = _PAIR if "text_a" in first.value else ("text",)
        columns = description.origin.get("settings", {}).get("columns", {})
        named = _named(columns["text"]) if "text" in columns else {}
        has_pairs = description.template is None and fields == _PAIR
        return replace(
            task,
            info=replace(task.info, has_pairs=has_pairs),
            fields=fields,
            template=description.template,
            columns=named,
        )

    def head_fields(
        self, task: ExampleTask, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
    ) -> dict[str, Any]:
        """Return labels, fields and template."""
        return {
            "labels": task.labels,
            "fields": task.fields,
            "columns": task.columns,
            "template": task.template,
        }

    def example(self, row: Row, record: HeadRecord) -> str:
        """Return the text of a row."""
        if record.template is not None:
            return fill(record.template, row)
        return fill(PAIR_TEMPLATE, row) if record.fields == _PAIR else row.text("text")


class EncodedTexts(EncodedTask):
    """Texts with one answer each, as token sequences; `expected` are answers by split."""

    def __init__(
        self, task: ExampleTask, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
    ) -> None:
        from biphasic.tasks.encoding import encode_texts

        self.info, self.pad_id, self.labels = task.info, tokenizer.pad_id, task.labels
        self.num_outputs = max(len(task.labels), 1)
        self.num_truncated, self.sequences, self.ids, self.expected = {}, {}, {}, {}
        self.sides: dict[str, list[list[TokenIds]]] = {}  # of probes: both texts of pairs
        for split, examples in task.splits.items():
            self.sequences[split], self.num_truncated[split] = encode_texts(
                [example.text for example in examples], tokenizer, max_seqlen=protocol.max_seqlen
            )
            self.ids[split] = tuple(example.id for example in examples)
            self.expected[split] = np.array(list(map(self.expect, examples)))
            if protocol.is_probe and task.info.has_pairs:
                sides = zip(*(example.pair for example in examples), strict=True)
                encoded = [
                    encode_texts(side, tokenizer, max_seqlen=protocol.max_seqlen) for side in sides
                ]
                self.sides[split] = [sequences for sequences, _ in encoded]
                self.num_truncated[split] = sum(num_cut for _, num_cut in encoded)
                self.states_read = 4
        self.trained_sequences = self.sequences.get("train", [])
        self.num_train = len(self.trained_sequences)

    def expect(self, example: AnsweredText) -> Any:
        """Return the expected answer of an example."""
        return example.answer

    @abstractmethod
    def mean_loss(self, outputs: Tensor, expected: Array) -> Tensor:
        """Return the mean loss of outputs, [num_texts, num_outputs]."""

    @abstractmethod
    def score(self, ids: tuple[str, ...], outputs: Array, expected: Array) -> SplitScores:
        """Score outputs, [num_texts, num_outputs]."""

    def loss(self, encoder: Encoder, head: nn.Module, indices: NDArray[np.int64]) -> Tensor:
        """Return the mean loss over the training texts `indices`."""
        from biphasic.tasks.encoding import mean_pool

        hidden, spans = encoder.states([self.trained_sequences[index] for index in indices])
        return self.mean_loss(head(mean_pool(hidden, spans)), self.expected["train"][indices])

    def evaluate(self, encoder: Encoder, head: nn.Module) -> dict[str, SplitScores]:
        """Score validation and test."""
        scores = {}
        for split in SPLITS[1:]:
            outputs = head(encoder.pooled(self.sequences[split])).cpu().numpy()
            scores[split] = self.score_outputs(split, outputs)
        return scores

    def score_outputs(self, split: str, outputs: Array) -> SplitScores:
        """Score outputs on all texts of a split."""
        return self.score(self.ids[split], outputs, self.expected[split])

    def frozen(self, encoder: Encoder, split: str, chosen: Array | None = None) -> Tensor:
        """Return the mean states of texts; of a pair u, v, |u - v| and u * v.

        Reference: Conneau et al. 2017, section 3.1, arXiv:1705.02364.
        """
        import torch

        indices = np.arange(len(self.ids[split])) if chosen is None else chosen
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
        """Return the answers as the head's outputs have them."""
        answers = self.expected[split]
        return answers if chosen is None else answers[chosen]


def pooled_outputs(
    finetuned: FinetunedModel, texts: Sequence[str]
) -> tuple[NDArray[np.float64], int]:
    """Return the head's outputs for texts, [num_texts, num_outputs], and how many were cut."""
    from biphasic.tasks.encoding import encode_texts

    sequences, num_cut = encode_texts(
        texts, finetuned.tokenizer, max_seqlen=finetuned.protocol.max_seqlen
    )
    # In double precision the probabilities of a text add up to one.
    return finetuned.head(finetuned.encoder.pooled(sequences)).cpu().double().numpy(), num_cut


def _text_columns(there: Collection[str], path: Path, file: TaskFile) -> dict[str, str]:
    fields = template_fields(file.template) if file.template is not None else ()
    given: Any = file.columns.get("text")
    if given is not None:
        chosen = _named(given)
    elif fields and all(field in there for field in fields):
        chosen = {}
    else:
        chosen = _numbered(usual_columns(USUAL_TEXTS, there, path=path))
    # A template may name any column; columns that it omits are not part of the text.
    return {field: chosen.get(field, field) for field in fields} or chosen


def _named(given: str | Sequence[str]) -> dict[str, str]:
    return _numbered((given,) if isinstance(given, str) else given)


def _numbered(names: Sequence[str]) -> dict[str, str]:
    return dict(zip(("text",) if len(names) == 1 else _PAIR, names, strict=True))
