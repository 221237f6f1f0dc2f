"""Limits and shares of a corpus's sources, and where they end each source.

Sources are read in order, and a limit ends a source between two documents: after the last one with
which its training documents stay within the limit. Held-out documents are those before this
point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from biphasic.data.tokens.shards import LENGTHS

POSITION = 0
"""Column of a shard's index: index of the document in its source, counting both splits."""


MOST_BYTES_PER_TOKEN = 8
"""Average bytes of text per token, an upper bound; limits how much of a source is read."""


@dataclass(frozen=True)
class Limit:
    """Maximum training documents and tokens of a source; None for no limit."""

    tokens: int | None = None
    documents: int | None = None


class Reach:
    """Counts a source's training documents until they fill a limit.

    Attributes:
        tokens: Tokens of the kept documents.
        documents: Number of kept documents; empty ones are not counted.
        stop: Position of the first document that is not kept; None while the limit is not filled.
    """

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.tokens = self.documents = 0
        self.stop: int | None = None

    def extend(self, index: NDArray[np.int64]) -> None:
        """Add a shard of training documents.

        Args:
            index: int64 [num_documents, columns], as in shards.
        """
        if self.stop is not None:
            return
        lengths = index[:, LENGTHS]
        tokens = self.tokens + np.cumsum(lengths)
        documents = self.documents + np.cumsum(lengths > 0)
        is_filled = np.zeros(len(index), dtype=bool)
        if self.limit.tokens is not None:
            is_filled |= tokens >= self.limit.tokens
        if self.limit.documents is not None:
            is_filled |= documents >= self.limit.documents
        num_kept = len(index)
        if is_filled.any():
            last = int(is_filled.argmax())
            is_beyond = self.limit.tokens is not None and tokens[last] > self.limit.tokens
            num_kept = last if is_beyond else last + 1
            # Not the position of the next document, which may not have been read yet.
            self.stop = int(index[last, POSITION]) + (not is_beyond)
        if num_kept:
            self.tokens, self.documents = int(tokens[num_kept - 1]), int(documents[num_kept - 1])


def token_quotas(shares: Sequence[float], total: int) -> list[int]:
    """Divide a number of tokens by shares, rounded down."""
    exact = [Fraction(share) for share in shares]
    return [int(share * total / sum(exact)) for share in exact]


def fitting_quotas(shares: Sequence[float], available: Sequence[int]) -> list[int]:
    """Return the largest quotas in the ratio of the shares that the sources can fill."""
    exact = [Fraction(share) for share in shares]
    unit = min(tokens / share for tokens, share in zip(available, exact, strict=True))
    return [int(share * unit) for share in exact]


def largest_total(shares: Sequence[float], source: int, tokens: int) -> int:
    """Return the largest total for which a source can fill its share."""
    exact = [Fraction(share) for share in shares]
    return int(tokens * sum(exact) / exact[source])
