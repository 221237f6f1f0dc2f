"""Inputs and labels that an objective makes from rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from biphasic.data.packing import PackedBatch
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ConfigError
from biphasic.objectives.words import Spellings, spellings_of


@dataclass(frozen=True)
class Supervision:
    """Input rows and the labels of one objective.

    Attributes:
        rows: Input of the model.
        positions: int64 [num_supervised]; predicted positions in the flattened rows, ascending.
        labels: int64 [num_supervised]; their labels.
        causal: Whether a token attends only to those before it.
    """

    rows: PackedBatch
    positions: NDArray[np.int64]
    labels: NDArray[np.int64]
    causal: bool

    def split(self, rows_per_part: int | None) -> tuple[Supervision, ...]:
        """Divide the rows, in order, into parts of at most this many; None keeps them together.

        Parts are as equal in size as possible. Parts without labels are omitted, as they add
        nothing to the sum of losses. No sequence spans two rows, so nothing else changes.
        """
        if rows_per_part is None or self.rows.num_rows <= rows_per_part:
            return (self,)
        num_parts = -(-self.rows.num_rows // rows_per_part)
        borders = [index * self.rows.num_rows // num_parts for index in range(num_parts + 1)]
        parts = (self.part(start, end) for start, end in pairwise(borders))
        return tuple(part for part in parts if len(part.labels))

    def without_labels(self) -> Supervision:
        """Return the rows without labels: they add nothing to the sum of losses."""
        return replace(self, positions=self.positions[:0], labels=self.labels[:0])

    def part(self, start: int, end: int) -> Supervision:
        """Return rows `start` to `end` with their labels, possibly none."""
        first, last = start * self.rows.row_length, end * self.rows.row_length
        inside = slice(*np.searchsorted(self.positions, [first, last]).tolist())
        return Supervision(
            rows=self.rows.part(start, end),
            positions=self.positions[inside] - first,
            labels=self.labels[inside],
            causal=self.causal,
        )


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer's properties that objectives need.

    Attributes:
        size: Highest id plus one.
        special_ids: Tokens that no text contains.
        tokenizer: Used to find words; without it, only single tokens can be masked.
    """

    size: int
    mask_id: int
    special_ids: frozenset[int]
    tokenizer: TextTokenizer | None = None

    @cached_property
    def spellings(self) -> Spellings:
        """The text of each token; computed on first use."""
        if self.tokenizer is None:
            raise ConfigError("selection: words and spans need the tokenizer, which is unknown")
        return spellings_of(self.tokenizer)
