"""Inputs and labels that an objective makes from rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from biphasic.data.packing import PackedBatch
from biphasic.data.rows import RowBatch
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ConfigError
from biphasic.objectives.words import Spellings, spellings_of

if TYPE_CHECKING:  # settings are read without torch
    from torch import Tensor

    from biphasic.objectives.loss import PerLabel


class StatesLoss(ABC):
    """A loss over final states, in place of the cross-entropy of the language-model head.

    Attributes:
        couples: Whether the loss of one vector depends on the others of the step. Then `summed`
            gets the vectors of all passes and processes at once, ordered by their labels, which
            number them from 0. Otherwise it gets those of each pass with their labels.
    """

    couples: bool

    @property
    @abstractmethod
    def normaliser(self) -> float:
        """What the sum of a step is divided by."""

    @abstractmethod
    def vectors(self, hidden: Tensor, positions: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Return a vector in fp32 for each label of a pass.

        `hidden` are its final states, [num_rows * row_length, hidden_size]; positions of labels and
        borders of segments are int64 and int32.
        """

    @abstractmethod
    def summed(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """Return the summed loss, a scalar in fp32, of vectors with labels."""


@dataclass(frozen=True)
class Supervision:
    """Input rows and the labels of one objective.

    Attributes:
        rows: Input of the model.
        positions: int64 [num_supervised]; predicted positions in the flattened rows, ascending.
        labels: int64 [num_supervised]; their labels.
        causal: Whether a token attends only to those before it.
        loss: A loss over hidden states in place of that of the language-model head.
        weights: fp32 [num_supervised]; factors of the labels' losses. None for 1.
        num_predicted: What the summed loss is divided by, if not the number of labels.
        per_label: A loss of logits and labels in place of the cross-entropy.
        values: fp32 [num_supervised, any]; numbers for each label that `per_label` gets as well.
    """

    rows: PackedBatch
    positions: NDArray[np.int64]
    labels: NDArray[np.int64]
    causal: bool
    loss: StatesLoss | None = None
    weights: NDArray[np.float32] | None = None
    num_predicted: int | None = None
    per_label: PerLabel | None = None
    values: NDArray[np.float32] | None = None

    @property
    def normaliser(self) -> float:
        """What the summed loss is divided by: the number of labels, unless another is given."""
        if self.loss is not None:
            return self.loss.normaliser
        return len(self.labels) if self.num_predicted is None else self.num_predicted

    @property
    def head_tokens(self) -> int:
        """Tokens that the language-model head reads."""
        return len(self.labels) if self.loss is None else 0

    def split(self, rows_per_part: int | None) -> tuple[Supervision, ...]:
        """Divide the rows, in order, into parts of at most this many; None keeps them together."""
        # Parts without labels are omitted: they add nothing to the sum of losses. No sequence spans
        # two rows, so nothing else changes.
        if rows_per_part is None or self.rows.num_rows <= rows_per_part:
            return (self,)
        num_parts = -(-self.rows.num_rows // rows_per_part)
        borders = [index * self.rows.num_rows // num_parts for index in range(num_parts + 1)]
        parts = (self.part(start, end) for start, end in pairwise(borders))
        return tuple(part for part in parts if len(part.labels))

    def without_labels(self) -> Supervision:
        """Return the rows without labels: they add nothing to the sum of losses."""
        return self._with(slice(0))

    def part(self, start: int, end: int) -> Supervision:
        """Return rows `start` to `end` with their labels, possibly none."""
        first, last = start * self.rows.row_length, end * self.rows.row_length
        inside = slice(*np.searchsorted(self.positions, [first, last]).tolist())
        part = replace(self._with(inside), rows=self.rows.part(start, end))
        return replace(part, positions=part.positions - first)

    def _with(self, labels: slice) -> Supervision:
        """Return the rows with some of the labels."""
        names = ("positions", "labels", "weights", "values")
        given = {name: getattr(self, name) for name in names}
        kept = {name: array[labels] for name, array in given.items() if array is not None}
        return replace(self, **kept)


def problems(
    parts: object, batch: RowBatch, vocabulary: Vocabulary, directions: Collection[bool]
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with what an objective makes of a batch, each with the rule it breaks."""
    if not isinstance(parts, tuple) or not all(isinstance(p, Supervision) for p in parts):
        yield "rows", "supervise must return a tuple of Supervision"
        return
    first = 0
    for part in parts:
        first %= batch.packed.num_rows  # rows may be read again, such as in the other direction
        given = batch.part(first, first + part.rows.num_rows)
        first += part.rows.num_rows
        if part.rows.input_ids.shape != given.packed.input_ids.shape or not (
            np.array_equal(part.rows.cu_seqlens, given.packed.cu_seqlens)
        ):
            yield "rows", "a part has other rows or borders than the batch"
            return
        if part.causal not in directions:
            yield "directions", f"a part has causal={part.causal}, which directions lacks"
        if part.loss is None:
            yield from (("positions", text) for text in _wrong_labels(part, given, vocabulary))
    if first != batch.packed.num_rows:
        yield "rows", f"the last part ends at row {first} of {batch.packed.num_rows}"


def _wrong_labels(part: Supervision, given: RowBatch, vocabulary: Vocabulary) -> Iterator[str]:
    positions, labels, inputs = part.positions, part.labels, part.rows.input_ids
    if any(getattr(array, "dtype", None) != np.int64 for array in (positions, labels, inputs)):
        yield "positions, labels and input_ids must be int64"
        return
    if positions.shape != labels.shape or positions.ndim != 1:
        yield f"{positions.size} positions have {labels.size} labels"
    elif np.any(np.diff(positions) <= 0):
        yield "positions are not ascending"
    elif len(positions) and not 0 <= positions[0] <= positions[-1] < inputs.size:
        yield "a position is outside of the rows"
    elif not np.all(given.is_token[positions]):
        yield "a position is outside of the rows' tokens"
    for name, ids in (("a label", labels), ("an input", inputs)):
        if ids.size and not 0 <= ids.min() <= ids.max() < vocabulary.size:
            yield f"{name} is not in the vocabulary"
    weights, values = part.weights, part.values
    if values is not None and (values.dtype != np.float32 or len(values) != len(labels)):
        yield "values must be fp32, with a row for each label"
    if weights is None:
        return
    if weights.dtype != np.float32 or weights.shape != labels.shape or np.any(weights < 0):
        yield "weights must be fp32, not negative, and one for each label"


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer's properties that objectives need."""

    size: int  # highest id plus one
    mask_id: int
    special_ids: frozenset[int]  # tokens that no text contains
    tokenizer: TextTokenizer | None = None  # finds words; without it, only tokens can be masked

    @cached_property
    def spellings(self) -> Spellings:
        """The text of each token; computed on first use."""
        if self.tokenizer is None:
            raise ConfigError("selection: words and spans need the tokenizer, which is unknown")
        return spellings_of(self.tokenizer)
