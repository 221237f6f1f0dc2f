"""Near-duplicates by shared word shingles, in time linear in the text.

Shingles are runs of eight consecutive words, lower-cased, without punctuation and layout (Broder
1997, "On the resemblance and containment of documents"). All are kept, not a sketch, so the result
is exact except for collisions of 64-bit hashes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

SHINGLE_WORDS = 8
NEAR_DUPLICATE_SHARE = 0.5

_WORD = re.compile(r"[^\W_]+")
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # odd, so multiplication is invertible


class Shingler:
    """Converts texts to shingles, caching the hash of each word."""

    def __init__(self) -> None:
        self._hashes: dict[str, int] = {}

    def __call__(self, text: str) -> NDArray[np.uint64]:
        """Return the distinct shingles of a text; a short one is one shingle, an empty one none."""
        words = _WORD.findall(text.lower())
        hashes = np.fromiter((self._word(word) for word in words), np.uint64, len(words))
        width = min(SHINGLE_WORDS, len(words))
        if not width:
            return hashes
        count = len(words) - width + 1
        rolled = np.zeros(count, dtype=np.uint64)
        for shift in range(width):
            rolled = rolled * _MULTIPLIER + hashes[shift : shift + count]
        return np.unique(rolled)

    def with_symbols(self, text: str) -> NDArray[np.uint64]:
        """Return the shingles of a text; one of symbols alone, without words, is one shingle."""
        shingles, symbols = self(text), "".join(text.split())
        if len(shingles) or not symbols:
            return shingles
        return np.array([self._word(symbols)], dtype=np.uint64)

    def _word(self, word: str) -> int:
        if word not in self._hashes:
            digest = hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest()
            self._hashes[word] = int.from_bytes(digest, "little")
        return self._hashes[word]


class ShingleIndex:
    """The shingles of a collection of texts, for measuring containment."""

    def __init__(self, collection: Iterable[NDArray[np.uint64]]) -> None:
        self._known = np.sort(np.concatenate([np.zeros(0, np.uint64), *collection]))

    def containment(self, shingles: NDArray[np.uint64]) -> float:
        """Return the share of a text's shingles that the collection holds, 0 to 1."""
        if not (len(shingles) and len(self._known)):
            return 0.0
        places = np.minimum(np.searchsorted(self._known, shingles), len(self._known) - 1)
        return float(np.mean(self._known[places] == shingles))

    def holds(self, shingles: NDArray[np.uint64]) -> bool:
        """Return whether texts of the collection together hold at least half of a text."""
        return self.containment(shingles) >= NEAR_DUPLICATE_SHARE
