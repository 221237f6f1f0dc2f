"""The form in which texts are compared, and near-duplicates by shared shingles, in linear time.

Shingles are runs of eight consecutive words without punctuation, case, layout and forms of Unicode
(Broder 1997, "On the resemblance and containment of documents"). All shingles are kept, not a
sketch, so the result is exact except for collisions of 64-bit hashes.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from biphasic.data.text.words import SELECTOR, WordSigns

SHINGLE_WORDS = 8
NEAR_DUPLICATE_SHARE = 0.5
COMPARISON_VERSION = 2  # increase by hand whenever the same texts would compare differently

_MOST_HASHES = 1 << 20  # cached; words of a large corpus would fill the memory
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # odd, so multiplication is invertible


def comparable(text: str) -> str:
    """Return a text without case, layout, format signs and differences of its Unicode form."""
    if not text.isascii():
        folded = unicodedata.normalize("NFKC", text.translate(_INVISIBLE)).casefold()
        text = unicodedata.normalize("NFKC", folded)  # folding case may undo the composition
    return " ".join(text.lower().split())


class _Invisible(dict[int, str]):
    """The form of each character: format signs and selectors of a form vanish."""

    def __missing__(self, code: int) -> str:
        sign = chr(code)
        is_invisible = unicodedata.category(sign) == "Cf" or SELECTOR.match(sign)
        self[code] = "" if is_invisible else sign
        return self[code]


_INVISIBLE, _WORDS = _Invisible(), WordSigns()


def comparable_words(text: str) -> list[str]:
    """Return the words of a text as they are compared, and characters of other scripts."""
    return comparable(text).translate(_WORDS).split()


class _Hashes(dict[str, int]):
    """The hash of each word."""

    def __missing__(self, word: str) -> int:
        if len(self) == _MOST_HASHES:
            self.clear()
        # Python's own `hash` of a text differs from process to process.
        digest = hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest()
        self[word] = int.from_bytes(digest, "little")
        return self[word]


class Shingler:
    """Converts texts to shingles, caching the hash of each word."""

    def __init__(self) -> None:
        self._hashes = _Hashes()

    def __call__(self, text: str) -> NDArray[np.uint64]:
        """Return the distinct shingles of a text; a short one is one shingle, an empty one none."""
        words = comparable_words(text)
        hashes = np.fromiter(map(self._hashes.__getitem__, words), np.uint64, len(words))
        # Texts of fewer words have one shingle of all of them, and match only texts as short.
        width = min(SHINGLE_WORDS, len(words))
        if not width:
            return hashes
        count = len(words) - width + 1
        rolled = np.zeros(count, dtype=np.uint64)
        for shift in range(width):
            # A polynomial of the words in order, so the same words in another order are another
            # shingle.
            rolled = rolled * _MULTIPLIER + hashes[shift : shift + count]
        return np.unique(rolled)

    def with_symbols(self, text: str) -> NDArray[np.uint64]:
        """Return the shingles of a text; one of symbols alone, without words, is one shingle."""
        shingles = self(text)
        if len(shingles) or not (symbols := comparable(text).replace(" ", "")):
            return shingles
        return np.array([self._hashes[symbols]], dtype=np.uint64)


class ShingleIndex:
    """The shingles of a collection of texts, for measuring containment."""

    def __init__(self, collection: Iterable[NDArray[np.uint64]]) -> None:
        self._known = np.sort(np.concatenate([np.zeros(0, np.uint64), *collection]))

    def containment(self, shingles: NDArray[np.uint64]) -> float:
        """Return the share of a text's shingles that the collection holds, 0 to 1."""
        if not (len(shingles) and len(self._known)):
            return 0.0
        # A shingle above all known ones has a place behind the end.
        places = np.minimum(np.searchsorted(self._known, shingles), len(self._known) - 1)
        return float(np.mean(self._known[places] == shingles))

    def holds(self, shingles: NDArray[np.uint64]) -> bool:
        """Return whether texts of the collection together hold at least half of a text."""
        return self.containment(shingles) >= NEAR_DUPLICATE_SHARE
