"""Reads CoNLL and IOB2 files: one token per line, an empty line after each sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from biphasic.errors import DataError
from biphasic.tasks.formats.examples import is_bio
from biphasic.tasks.formats.rows import Row, read_lines

_DOCUMENT = "-DOCSTART-"
_SENTENCE_ID = re.compile(r"#\s*sent_id\s*=\s*(.+)")
_TAB = re.compile("\t")
# Not all Unicode white space, which tokens may contain.
_SPACES = re.compile(" +")


@dataclass
class _Sentence:
    """Tokens between two empty lines."""

    number: int = 0
    id: str = ""
    tokens: list[list[str]] = field(default_factory=list)


def read_conll(path: Path, *, token_column: int | None, tag_column: int | None) -> list[Row]:
    """Read sentences with their tags.

    Columns are separated by tabs if the first token's line has one, otherwise by spaces. By default
    the first column is the token and the last the tag; if the first column counts the tokens of a
    sentence (CoNLL-U, Universal NER), they are the second and third. `-DOCSTART-` lines and
    comments above a sentence are not tokens; `# sent_id = ...` sets the sentence's id. Columns are
    numbered from 1.

    Raises:
        DataError: A line has more or fewer columns than the first, or a column does not exist.
    """
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
    return [_row(path, sentence, token=token - 1, tag=tag - 1) for sentence in sentences]


def _sentences(path: Path) -> Iterator[_Sentence]:
    lines = [(number, line.rstrip("\r\n")) for number, line in read_lines(path)]
    separator, width = _layout(text for _, text in lines)
    sentence = _Sentence()
    for number, text in lines:
        columns = separator.split(text)
        if not text.strip(" \t"):
            yield sentence
            sentence = _Sentence()
        elif columns[0] == _DOCUMENT:
            continue
        elif not sentence.tokens and _is_comment(columns, width):
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


def _is_comment(columns: list[str], width: int) -> bool:
    """Return whether a line is a comment, not a token such as a hashtag."""
    if not columns[0].startswith("#"):
        return False
    return len(columns) != width or not any(map(is_bio, columns[1:]))


def _is_counted(sentence: _Sentence) -> bool:
    return all(columns[0] == str(place) for place, columns in enumerate(sentence.tokens, start=1))


def _row(path: Path, sentence: _Sentence, *, token: int, tag: int) -> Row:
    value = {
        "id": sentence.id or str(sentence.number),
        "tokens": [columns[token] for columns in sentence.tokens],
        "tags": [columns[tag] for columns in sentence.tokens],
    }
    return Row(path, sentence.number, value, is_vertical=True)
