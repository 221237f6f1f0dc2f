"""Texts cut into words."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from itertools import groupby

from biphasic.tasks.rows.row import Row

_WORD_CATEGORIES = ("L", "M", "N", "Pc", "Cf")


@dataclass(frozen=True, slots=True)
class Words:
    """A text cut into words.

    Attributes:
        starts: Start of each word in the text, in characters.
        text: The text; None if the words were given.
    """

    words: tuple[str, ...]
    starts: tuple[int, ...]
    text: str | None


def words_of(row: Row) -> Words:
    """Return the words of `tokens`, or those of `text`."""
    if "tokens" not in row.value:
        return split_words(row.text("text"))
    words = row.items("tokens", str)
    if not words:
        raise row.error("the sentence has no tokens")
    for position, word in enumerate(words):
        if not word.strip():
            raise row.error(f"token {position} is empty ({word!r})", token=position)
    return Words(tuple(words), tuple(range(len(words))), None)


def split_words(text: str) -> Words:
    """Split a text into words: runs of letters, marks and digits; each other sign is a word."""
    words: list[str] = []
    starts: list[int] = []
    place = 0
    for is_word, run in groupby(text, _is_of_word):
        signs = "".join(run)
        parts = [signs] if is_word else list(signs)
        for part in parts:
            if not part.isspace():
                words.append(part)
                starts.append(place)
            place += len(part)
    return Words(tuple(words), tuple(starts), text)


def _is_of_word(sign: str) -> bool:
    return unicodedata.category(sign).startswith(_WORD_CATEGORIES)
