"""Reads the formats in which people keep examples: CSV, TSV, CoNLL and SQuAD's JSON."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from biphasic.errors import DataError
from biphasic.tasks.rows.row import Row, parse_json, read_lines
from biphasic.tasks.rows.tags import is_bio

# The csv module's default limit of 131,072 characters is too short for long documents.
_LONGEST_FIELD = 2**31 - 1
_DOCUMENT = "-DOCSTART-"
_SENTENCE_ID = re.compile(r"#\s*sent_id\s*=\s*(.+)")
_TAB = re.compile("\t")
# Not all Unicode white space, which tokens may contain.
_SPACES = re.compile(" +")


def read_csv(path: Path) -> Iterator[Row]:
    """Read comma-separated values; quoted fields may hold commas, quotes and line breaks."""
    limit = csv.field_size_limit(_LONGEST_FIELD)
    try:
        yield from _table_rows(path, _csv_records(path))
    finally:
        csv.field_size_limit(limit)


def read_tsv(path: Path) -> Iterator[Row]:
    """Read tab-separated values; quotes have no special meaning."""
    lines = ((number, line.rstrip("\r\n").split("\t")) for number, line in read_lines(path))
    return _table_rows(path, lines)


def _csv_records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the fields of each record, and the line on which it starts."""
    reader = csv.reader((line for _, line in read_lines(path)), strict=True)
    while True:
        number = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"{path}:{number}: not valid CSV ({error}); write a field with quotes as "
                '"so ""quoted"" here"'
            ) from None
        yield number, fields


def _table_rows(path: Path, records: Iterator[tuple[int, list[str]]]) -> Iterator[Row]:
    _, header = next(records, (1, []))
    if not any(header):
        raise DataError(f"{path}:1: no header; the first line must name the columns")
    if repeated := sorted(name for name, count in Counter(header).items() if count > 1):
        raise DataError(f"{path}:1: the column '{repeated[0]}' is named twice")
    for number, fields in records:
        if fields in ([], [""]) and len(header) > 1:
            raise DataError(f"{path}:{number}: an empty line; remove it")
        if len(fields) != len(header):
            raise DataError(
                f"{path}:{number}: {len(fields)} fields, but the header names {len(header)}: "
                f"{', '.join(header)}"
            )
        yield Row(path, number, dict(zip(header, fields, strict=True)))


@dataclass
class _Sentence:
    """Tokens between two empty lines."""

    number: int = 0
    id: str = ""
    tokens: list[list[str]] = field(default_factory=list)


def read_conll(path: Path, *, token_column: int | None, tag_column: int | None) -> list[Row]:
    """Read the sentences of a CoNLL or IOB2 file with their tags.

    Each line is a token, and an empty line ends a sentence. Columns, numbered from 1, are separated
    by tabs if the first token's line has one, otherwise by spaces. By default the first column is
    the token and the last the tag; if the first column counts the tokens of a sentence (CoNLL-U,
    Universal NER), they are the second and third. `-DOCSTART-` lines and comments above a sentence
    are not tokens; `# sent_id = ...` sets the sentence's id.
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
    return [_sentence_row(path, sentence, token=token - 1, tag=tag - 1) for sentence in sentences]


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


def _sentence_row(path: Path, sentence: _Sentence, *, token: int, tag: int) -> Row:
    value = {
        "id": sentence.id or str(sentence.number),
        "tokens": [columns[token] for columns in sentence.tokens],
        "tags": [columns[tag] for columns in sentence.tokens],
    }
    return Row(path, sentence.number, value, is_vertical=True)


def read_squad(path: Path) -> Iterator[Row]:
    """Yield the questions of a file of version 1.1 or 2.0.

    Plausible answers of unanswerable questions are ignored.

    Reference: arXiv:1606.05250, arXiv:1806.03822.
    """
    top = parse_json("".join(line for _, line in read_lines(path)), where=str(path))
    number = 0
    for article, at_article in _items(path, top, "data", place=""):
        for paragraph, at_paragraph in _items(path, article, "paragraphs", place=at_article):
            context = paragraph.get("context")
            for question, place in _items(path, paragraph, "qas", place=at_paragraph):
                number += 1
                yield _question_row(Row(path, number, question, place), context)


def _items(path: Path, parent: Any, key: str, *, place: str) -> Iterator[tuple[dict, str]]:
    """Yield the objects of a list, and their positions."""
    items = parent.get(key) if isinstance(parent, dict) else None
    where = f"{path}: {place}" if place else str(path)
    if not isinstance(items, list):
        raise DataError(f"{where}: not in SQuAD's format: no list '{key}'")
    for index, item in enumerate(items):
        at = f"{place}.{key}[{index}]" if place else f"{key}[{index}]"
        if not isinstance(item, dict):
            raise DataError(f"{path}: {at}: expected a JSON object")
        yield item, at


def _question_row(given: Row, context: Any) -> Row:
    answers = given.value.get("answers", [])
    if not isinstance(answers, list) or not all(isinstance(answer, dict) for answer in answers):
        raise given.error("'answers' must be a list of objects")
    is_impossible = given.value.get("is_impossible")
    if is_impossible and answers:
        raise given.error("is_impossible is true, but there are answers")
    if not is_impossible and not answers:
        raise given.error('no answers; a question without any needs "is_impossible": true')
    value = {
        "question": given.value.get("question"),
        "context": context,
        "answers": joined_answers(answers),
    }
    if "id" in given.value:
        value["id"] = given.value["id"]
    return Row(given.path, given.number, value, given.place)


def joined_answers(answers: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Convert a list of `{"text", "answer_start"}` to one object with two lists."""
    return {
        "text": [answer.get("text") for answer in answers],
        "answer_start": [answer.get("answer_start") for answer in answers],
    }
