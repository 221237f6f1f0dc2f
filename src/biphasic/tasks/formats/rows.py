"""Rows of task files, each with the place it came from, so that every mistake can name it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from biphasic.data.text import lines
from biphasic.errors import DataError, reading

_REQUIRED: Any = object()
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Row:
    """One example as a file has it.

    Attributes:
        path: The file.
        number: Line on which it begins, from 1; stands in for an id where there is none.
        value: Its fields.
        place: Where it stands in a file that is one JSON value, such as `data[0].paragraphs[2]`.
        is_vertical: Token `n` stands `n` lines below the first.
    """

    path: Path
    number: int
    value: dict[str, Any]
    place: str = ""
    is_vertical: bool = False

    def error(self, message: str, *, token: int = 0) -> DataError:
        """Return an error that names file and line; that of `token` where tokens have lines."""
        line = self.number + token if self.is_vertical else self.number
        return DataError(
            f"{self.path}: {self.place}: {message}"
            if self.place
            else f"{self.path}:{line}: {message}"
        )

    def text(self, key: str, default: str = _REQUIRED) -> str:
        """Return a field that must be a text.

        Raises:
            DataError: It is missing or anything else.
        """
        value = self.value.get(key, default)
        if value is _REQUIRED:
            raise self.error(f"no field '{key}'")
        if not isinstance(value, str):
            raise self.error(f"'{key}' must be a text, not {value!r}")
        return value

    def real(self, key: str) -> float:
        """Return a field that must be a finite number.

        Raises:
            DataError: It is missing or anything else.
        """
        value = self.value.get(key, _REQUIRED)
        if value is _REQUIRED:
            raise self.error(f"no field '{key}'")
        try:
            number = math.nan if isinstance(value, bool | str) else float(value)
        # Whole numbers have no limit in JSON; and there are lists and objects.
        except (OverflowError, TypeError):
            number = math.nan
        if not math.isfinite(number):
            raise self.error(f"'{key}' must be a finite number, not {value!r:.60}")
        return number

    def items(self, key: str, kind: type) -> list[Any]:
        """Return a field that must be a list of values of one type.

        Raises:
            DataError: It is missing or anything else.
        """
        value = self.value.get(key)
        # A bool is an int to Python, never to a person.
        if not isinstance(value, list) or any(type(item) is not kind for item in value):
            raise self.error(f"'{key}' must be a list of {kind.__name__}")
        return value

    def id(self, key: str = "id") -> str:
        """Return the id; the line number where the row has none.

        Raises:
            DataError: It is neither a text nor a whole number.
        """
        value = self.value.get(key, self.number)
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise self.error(f"'{key}' must be a text or a whole number, not {value!r}")
        return str(value)


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line, line ends included; `.gz` is unpacked on the way.

    Raises:
        DataError: The file is missing, or is not UTF-8 text.
    """
    with reading(path, DataError):
        try:
            for number, line in enumerate(lines.read_lines(path), start=1):
                yield number, _decode(line, path=path, number=number)
        except FileNotFoundError:
            raise DataError(f"{path}: no such file") from None


def _decode(line: bytes, *, path: Path, number: int) -> str:
    # A byte order mark is how some programs sign UTF-8.
    line = line.removeprefix(_BOM) if number == 1 else line
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"byte 0x{line[error.start]:02x} after {error.start} others"
        raise DataError(f"{path}:{number}: not UTF-8 ({found}); save the file as UTF-8") from None
    if "\0" in text:
        raise DataError(f"{path}:{number}: a NUL byte; the file is damaged, or not UTF-8")
    return text


def read_jsonl(path: Path) -> Iterator[Row]:
    """Yield the JSON objects of a file, one a line.

    Raises:
        DataError: A line is no JSON object.
    """
    for number, line in read_lines(path):
        value = parse_json(line, where=f"{path}:{number}")
        if not isinstance(value, dict):
            raise DataError(f"{path}:{number}: expected a JSON object")
        yield Row(path, number, value)


def parse_json(text: str, *, where: str) -> Any:
    """Parse JSON text.

    Raises:
        DataError: It is not valid, or names half of a surrogate pair, which no UTF-8 can hold.
    """
    if not text.strip():
        raise DataError(f"{where}: not valid JSON (nothing there)")
    try:
        value = json.loads(text)
    # Not only JSONDecodeError: Python refuses numbers of thousands of digits with its parent.
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON ({error})") from None
    if "\\ud" in text or "\\uD" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise DataError(f"{where}: half of a surrogate pair (\\ud800 to \\udfff)") from None
    return value
