"""What a word is, where texts are compared, searched, scored or tagged by words.

A word is a run of letters, their marks and digits between spaces and signs. Scripts that put no
spaces between words (Han, kana, Thai, Lao, Khmer, Myanmar) count each character as a word.
Whole-word masking has words of its own, which follow BERT (`objectives/supervision.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from unicodedata import category

# Characters of these scripts, as the content of a class of a regular expression.
UNSPACED = (
    "\u0e01-\u0eff\u1000-\u109f\u1780-\u17f9\u3041-\u3098\u309b-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\ua9e0-\ua9fe\uaa60-\uaa7f\uf900-\ufaff\U0001aff0-\U0001affe"
    "\U0001b000-\U0001b001\U0001b11f-\U0001b16f\U00020000-\U000323af"
)
_UNSPACED = re.compile(f"[{UNSPACED}]")
# Characters that choose a form of the one before, such as that of an emoji.
SELECTOR = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_PART = re.compile(rf"[{UNSPACED}]|[^{UNSPACED}]+")


class WordSigns(dict[int, str]):
    """The form of each character: letters, marks and numbers stay, others separate words.

    Characters in `further` stay as well.
    """

    def __init__(self, further: str = "") -> None:
        self._further = further

    def __missing__(self, code: int) -> str:
        sign = chr(code)
        # Unlike `str.isalnum` and `\w`, a vowel sign of an Indic script does not end a word.
        is_word = category(sign)[0] in "LNM" or sign in self._further
        apart = f" {sign} " if is_unspaced(sign) else sign
        form = apart if is_word else " "
        self[code] = "" if SELECTOR.match(sign) else form
        return self[code]


_SIGNS = WordSigns("_")


def words_in(text: str) -> list[str]:
    """Return the words of a text, as they are written."""
    return text.translate(_SIGNS).split()


def searched_words(text: str) -> list[str]:
    """Return the words of a text in small letters, as in bm25s without single letters."""
    return [word for word in words_in(text.lower()) if len(word) > 1 or is_unspaced(word)]


def is_unspaced(sign: str) -> bool:
    """Return whether a character is of a script without spaces between words."""
    return _UNSPACED.match(sign) is not None


def are_unspaced(texts: Sequence[str]) -> bool:
    """Return whether at least half of the letters of some texts are of such scripts."""
    signs = [sign for text in texts for sign in text if category(sign)[0] == "L"]
    return bool(signs) and 2 * sum(map(is_unspaced, signs)) >= len(signs)


def parts_of(run: str) -> list[str]:
    """Split a run without spaces; a character of a script without spaces keeps its marks."""
    parts: list[str] = []
    for part in _PART.findall(run):
        if parts and category(part[0])[0] == "M":
            parts[-1] += part
        else:
            parts.append(part)
    return parts


def joined(words: Sequence[str]) -> str:
    """Join words with spaces, where their scripts have spaces."""
    return "".join(f"{gap}{word}" for gap, word in zip(gaps(words), words, strict=True))


def gaps(words: Sequence[str]) -> Iterator[str]:
    """Yield what stands before each word in a text."""
    yield from [""] * len(words[:1])
    for before, word in pairwise(words):
        yield "" if is_unspaced(before[-1]) and is_unspaced(word[0]) else " "
