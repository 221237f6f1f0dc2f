"""What an objective makes of rows: the inputs to show and the tokens to predict."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from biphasic.data.packing import PackedBatch
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ConfigError
from biphasic.objectives.masking.words import Spellings, spellings_of


@dataclass(frozen=True)
class Supervision:
    """Rows as the model sees them, and the labels of one objective.

    Attributes:
        rows: What the model sees.
        positions: int64 [num_supervised]; where it predicts, in the flattened rows, ascending.
        labels: int64 [num_supervised]; what is right there.
        causal: Whether a token sees only those before it.
    """

    rows: PackedBatch
    positions: NDArray[np.int64]
    labels: NDArray[np.int64]
    causal: bool

    def split(self, rows_per_part: int | None) -> tuple[Supervision, ...]:
        """Divide the rows into parts of at most so many, in order; None leaves them together.

        Parts have as equal a size as can be. One without labels is left out: it would add nothing
        to the sum of losses. No sequence lies in two rows, so nothing else changes.
        """
        if rows_per_part is None or self.rows.num_rows <= rows_per_part:
            return (self,)
        num_parts = -(-self.rows.num_rows // rows_per_part)
        borders = [index * self.rows.num_rows // num_parts for index in range(num_parts + 1)]
        parts = (self.part(start, end) for start, end in pairwise(borders))
        return tuple(part for part in parts if len(part.labels))

    def part(self, start: int, end: int) -> Supervision:
        """Return rows `start` to `end` with their labels, of which there may be none."""
        first, last = start * self.rows.row_length, end * self.rows.row_length
        inside = slice(*np.searchsorted(self.positions, [first, last]).tolist())
        return Supervision(
            rows=_rows(self.rows, start, end),
            positions=self.positions[inside] - first,
            labels=self.labels[inside],
            causal=self.causal,
        )


def _rows(packed: PackedBatch, start: int, end: int) -> PackedBatch:
    first, last = start * packed.row_length, end * packed.row_length
    borders, spans = packed.cu_seqlens, packed.spans
    return PackedBatch(
        input_ids=packed.input_ids[start:end],
        position_ids=packed.position_ids[start:end],
        cu_seqlens=borders[(borders >= first) & (borders <= last)] - np.int32(first),
        spans=spans[(spans[:, 0] >= first) & (spans[:, 0] < last)] - first,
    )


@dataclass(frozen=True)
class Vocabulary:
    """What objectives know of the tokenizer.

    Attributes:
        size: One more than the highest id.
        mask_id: The mask token.
        special_ids: Tokens that no text contains.
        tokenizer: Whence words are known; without it, tokens can be masked one by one alone.
    """

    size: int
    mask_id: int
    special_ids: frozenset[int]
    tokenizer: TextTokenizer | None = None

    @cached_property
    def spellings(self) -> Spellings:
        """What each token stands for in text; found out when first asked for.

        Raises:
            ConfigError: The tokenizer does not show where words begin, or there is none.
        """
        if self.tokenizer is None:
            raise ConfigError("selection: words and spans need the tokenizer, which is not known")
        return spellings_of(self.tokenizer)
