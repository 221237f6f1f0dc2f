"""Rows of task files, each with its position for error messages: JSON lines, CSV and TSV."""

from __future__ import annotations

import csv
import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from biphasic.data.text import lines
from biphasic.errors import DataError, reading, repeated
from biphasic.files import json_value

_REQUIRED: Any = object()
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_BOM = b"\xef\xbb\xbf"
# The csv module's default limit of 131,072 characters is too short for long documents.
_LONGEST_FIELD = 2**31 - 1
_PLURAL = {str: "texts", int: "whole numbers"}
# Signs that nobody sees in a name: zero-width ones, direction marks, the soft hyphen; spaces that
# do not break are spaces.
_UNSEEN = dict.fromkeys([0xAD, 0x2060, 0xFEFF, *range(0x200B, 0x2010)])
_UNSEEN |= dict.fromkeys([0xA0, 0x2007, 0x202F], " ")


def plain_name(name: str) -> str:
    """Return a name from outside as names are compared: in NFC, without what nobody sees."""
    return unicodedata.normalize("NFC", name.translate(_UNSEEN)).strip()


def text_fault(value: object) -> str:
    """Return why a value is not a text; empty for a text."""
    if not isinstance(value, str):
        return f"must be a text, not {value!r:.60}"
    try:
        value.encode()
    except UnicodeEncodeError as error:  # lists in memory may have them; readers of files do not
        return f"holds an unpaired surrogate (character {error.start}), which is not valid text"
    return ""


@dataclass(frozen=True, slots=True)
class Row:
    """One example of a file."""

    path: Path
    number: int  # line on which it starts, from 1; the default id
    value: dict[str, Any]
    place: str = ""  # in a single-value JSON file, such as `data[0].paragraphs[2]`
    is_vertical: bool = False  # token `n` is `n` lines below the first

    def error(self, message: str, *, token: int = 0) -> DataError:
        """Return an error that names file and line, or the line of `token` if tokens have lines."""
        line = self.number + token if self.is_vertical else self.number
        return DataError(
            f"{self.path}: {self.place}: {message}"
            if self.place
            else f"{self.path}:{line}: {message}"
        )

    def lacks(self, key: str) -> DataError:
        """Return an error that names a missing field, and those that there are."""
        there = ", ".join(map(repr, self.value)) or "none"
        return self.error(f"no field '{key}'; there are {there}")

    def text(self, key: str, default: str = _REQUIRED) -> str:
        """Return a text field."""
        value = self.value.get(key, default)
        if value is _REQUIRED:
            raise self.lacks(key)
        if fault := text_fault(value):
            raise self.error(f"'{key}' {fault}")
        return value

    def real(self, key: str) -> float:
        """Return a finite number field."""
        value = self.value.get(key, _REQUIRED)
        if value is _REQUIRED:
            raise self.lacks(key)
        try:
            number = math.nan if isinstance(value, bool | str) else float(value)
        # JSON integers have no size limit, and the value may be a list or an object.
        except (OverflowError, TypeError):
            number = math.nan
        if not math.isfinite(number):
            raise self.error(f"'{key}' must be a finite number, not {value!r:.60}")
        return number

    def written_number(self, key: str) -> dict[str, float]:
        """Return a field of a text file as a number; nothing if it is one already."""
        value = self.value[key]
        if not isinstance(value, str):
            return {}
        if not _NUMBER.fullmatch(text := value.strip()):
            raise self.error(f"'{text}' is not a number")
        return {key: float(text)}

    def items(self, key: str, kind: type) -> list[Any]:
        """Return a field that is a list of values of one type."""
        value = self.value.get(key)
        # bool is a subclass of int, but users do not mean it as one.
        if not isinstance(value, list) or any(type(item) is not kind for item in value):
            raise self.error(f"'{key}' must be a list of {_PLURAL[kind]}")
        for item in value if kind is str else ():
            if fault := text_fault(item):
                raise self.error(f"'{key}' {fault}")
        return value

    def id(self, key: str = "id") -> str:
        """Return the id; by default the line number."""
        value = self.value.get(key, self.number)
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise self.error(f"'{key}' must be a text or a whole number, not {value!r}")
        return str(value)


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line, line ends included; `.gz` is decompressed."""
    with reading(path, DataError):
        try:
            for number, line in enumerate(lines.read_lines(path), start=1):
                yield number, _decode(line, path=path, number=number)
        except FileNotFoundError:
            raise DataError(f"{path}: no such file") from None


def _decode(line: bytes, *, path: Path, number: int) -> str:
    # Some programs mark UTF-8 with a byte order mark.
    line = line.removeprefix(_BOM) if number == 1 else line
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        place = f"byte 0x{line[error.start]:02x} after {error.start} others"
        raise DataError(f"{path}:{number}: not UTF-8 ({place}); save the file as UTF-8") from None
    if "\0" in text:
        raise DataError(f"{path}:{number}: a NUL byte; the file is damaged, or not UTF-8")
    return text


def read_jsonl(path: Path) -> Iterator[Row]:
    """Yield the JSON objects of a file, one per line."""
    for number, line in read_lines(path):
        value = parse_json(line, where=f"{path}:{number}")
        if not isinstance(value, dict):
            raise DataError(f"{path}:{number}: expected a JSON object")
        yield Row(path, number, value)


def parse_json(text: str, *, where: str) -> Any:
    """Parse JSON text."""
    if not text.strip():
        raise DataError(f"{where}: not valid JSON (empty)")
    try:
        return json_value(text)
    # Not only JSONDecodeError: integers of thousands of digits raise its parent class.
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON ({error})") from None


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


def check_header(header: Sequence[str], *, where: Path | str) -> None:
    """Refuse a name that two columns have: a row would keep the value of the last one alone."""
    if names := repeated(header):
        raise DataError(f"{where}: the column '{names[0]}' is named twice")


def _table_rows(path: Path, records: Iterator[tuple[int, list[str]]]) -> Iterator[Row]:
    _, header = next(records, (1, []))
    if not any(header):
        raise DataError(f"{path}:1: no header; the first line must name the columns")
    check_header(header, where=f"{path}:1")
    for number, fields in records:
        if fields == header:
            raise DataError(f"{path}:{number}: the header is repeated; remove this line")
        if fields in ([], [""]) and len(header) > 1:
            raise DataError(f"{path}:{number}: an empty line; remove it")
        if not fields:
            raise DataError(f'{path}:{number}: an empty line; remove it, or write "" for no text')
        if len(fields) != len(header):
            raise DataError(
                f"{path}:{number}: {len(fields)} fields, but the header names {len(header)}: "
                f"{', '.join(header)}"
            )
        yield Row(path, number, dict(zip(header, fields, strict=True)))
