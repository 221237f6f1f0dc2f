"""How far each source of a corpus is read: limits, shares of tokens, and where they cut.

Sources are read in order, and a limit cuts a source between two documents: the last one kept is
the last with which its training documents stay within the limit. What is held out is what was met
on the way there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from biphasic.data.tokens.shards import LENGTHS

POSITION = 0
"""Column of a shard's index: the number of the document in its source, both splits counted."""


MOST_BYTES_PER_TOKEN = 8
"""Of text, on average; for how much to read of a source of which so many tokens are wanted."""


@dataclass(frozen=True)
class Limit:
    """The most of a source's training documents; None for no limit."""

    tokens: int | None = None
    documents: int | None = None


class Reach:
    """Follows a source's training documents until they fill a limit.

    Attributes:
        tokens: Of the documents kept.
        documents: How many are kept; those without a token are not counted.
        stop: Position of the first document that is not kept; None while the limit is not filled.
    """

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.tokens = self.documents = 0
        self.stop: int | None = None

    def extend(self, index: NDArray[np.int64]) -> None:
        """Go on by a shard of training documents.

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
            # Not the position of the next document: it may not have been read yet.
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
    """Return the largest total of which one source can give its share.

    Args:
        shares: Of all sources.
        source: Which of them has `tokens`.
        tokens: What it has.
    """
    exact = [Fraction(share) for share in shares]
    return int(tokens * sum(exact) / exact[source])
