"""Words and their tags: BIO2, CoNLL files, and the words of a text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from unicodedata import category

from biphasic.errors import DataError
from biphasic.rows import Row, read_lines

_DOCUMENT = "-DOCSTART-"
_SENTENCE_ID = re.compile(r"#\s*sent_id\s*=\s*(.+)")
_TAB = re.compile("\t")
# Not all Unicode white space, which tokens may contain.
_SPACES = re.compile(" +")
_WORD_CATEGORIES = ("L", "M", "N", "Pc", "Cf")


def is_bio(tag: str) -> bool:
    """Return whether a tag is `O`, `B-TYPE` or `I-TYPE`."""
    return tag == "O" or (tag[:2] in {"B-", "I-"} and len(tag) > 2)


def check_bio(row: Row, tags: Sequence[str]) -> None:
    """Check that tags are valid BIO2 (IOB2): every entity starts with `B-`."""
    previous = "O"
    for position, tag in enumerate(tags):
        if not is_bio(tag):
            raise row.error(
                f"not valid BIO2: {tag!r} at token {position} is neither O, B-TYPE nor I-TYPE",
                token=position,
            )
        if tag.startswith("I-") and previous[2:] != tag[2:]:
            raise row.error(
                f"not valid BIO2: '{tag}' at token {position} follows '{previous}'; an entity "
                f"starts with 'B-{tag[2:]}' (convert files in IOB1)",
                token=position,
            )
        previous = tag


def check_tag_set(labels: Sequence[str], *, where: str) -> None:
    """Check that labels are tags of token classification."""
    for label in labels:
        if not is_bio(label):
            raise DataError(f"{where}: '{label}' is not a BIO2 tag")
    if "O" not in labels:
        raise DataError(f"{where}: the tag 'O' is missing")


@dataclass
class _Sentence:
    """Tokens between two empty lines."""

    number: int = 0
    id: str = ""
    tokens: list[list[str]] = field(default_factory=list)


def read_conll(path: Path, *, token_column: int | None, tag_column: int | None) -> list[Row]:
    """Read the sentences of a CoNLL or IOB2 file with their tags; an empty line ends one."""
    # By default the first column is the token, the last the tag; if the first counts the tokens of
    # a sentence (CoNLL-U, Universal NER), they are the second and third. Columns count from 1.
    sentences = [sentence for sentence in _sentences(path) if sentence.tokens]
    if not sentences:
        return []
    width = len(sentences[0].tokens[0])
    is_counted = width > 2 and all(map(_is_counted, sentences))
    token = token_column or (2 if is_counted else 1)
    tag = tag_column or (3 if is_counted else width)
    if max(token, tag) > width or token == tag:
        raise DataError(
            f"{path}:{sentences[0].number}: token in column {token} and tag in column {tag}, but "
            f"there {'is 1 column' if width == 1 else f'are {width} columns'}"
        )
    rows: list[Row] = []
    for one in sentences:
        words, tags = zip(*((line[token - 1], line[tag - 1]) for line in one.tokens), strict=True)
        value = {"id": one.id or str(one.number), "tokens": [*words], "tags": [*tags]}
        rows.append(Row(path, one.number, value, is_vertical=True))
    return rows


def _sentences(path: Path) -> Iterator[_Sentence]:
    lines = [(number, line.rstrip("\r\n")) for number, line in read_lines(path)]
    separator, width = _layout(text for _, text in lines)
    sentence = _Sentence()
    for number, text in lines:
        columns = separator.split(text)
        has_tag = len(columns) == width and any(map(is_bio, columns[1:]))  # such as a hashtag's
        if not text.strip(" \t"):
            yield sentence
            sentence = _Sentence()
        elif columns[0] == _DOCUMENT:
            continue
        elif not sentence.tokens and columns[0].startswith("#") and not has_tag:
            if match := _SENTENCE_ID.fullmatch(text):
                sentence.id = match[1].strip() or sentence.id
        elif len(columns) != width:
            raise DataError(f"{path}:{number}: {len(columns)} columns, but the first has {width}")
        else:
            sentence.number = sentence.number or number
            sentence.tokens.append(columns)
    yield sentence


def _layout(texts: Iterable[str]) -> tuple[re.Pattern[str], int]:
    """Return the column separator and number of columns of the first line that must be a token."""
    for text in texts:
        if text.strip(" \t") and not text.startswith(("#", _DOCUMENT)):
            separator = _TAB if "\t" in text else _SPACES
            return separator, len(separator.split(text))
    return _TAB, 0


def _is_counted(sentence: _Sentence) -> bool:
    return all(columns[0] == str(place) for place, columns in enumerate(sentence.tokens, start=1))


@dataclass(frozen=True, slots=True)
class Words:
    """A text cut into words."""

    words: tuple[str, ...]
    starts: tuple[int, ...]  # in characters of the text
    text: str | None  # None if the words were given


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
    for is_word, run in groupby(text, lambda sign: category(sign).startswith(_WORD_CATEGORIES)):
        signs = "".join(run)
        parts = [signs] if is_word else list(signs)
        for part in parts:
            if not part.isspace():
                words.append(part)
                starts.append(place)
            place += len(part)
    return Words(tuple(words), tuple(starts), text)
