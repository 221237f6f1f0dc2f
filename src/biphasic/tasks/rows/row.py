"""Rows of task files, each with its position for error messages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from biphasic.data.text import lines
from biphasic.errors import DataError, reading
from biphasic.files import json_value

_REQUIRED: Any = object()
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Row:
    """One example of a file.

    Attributes:
        number: Line on which it starts, from 1; the default id.
        place: Its position in a single-value JSON file, such as `data[0].paragraphs[2]`.
        is_vertical: Whether token `n` is `n` lines below the first.
    """

    path: Path
    number: int
    value: dict[str, Any]
    place: str = ""
    is_vertical: bool = False

    def error(self, message: str, *, token: int = 0) -> DataError:
        """Return an error that names file and line, or the line of `token` if tokens have lines."""
        line = self.number + token if self.is_vertical else self.number
        return DataError(
            f"{self.path}: {self.place}: {message}"
            if self.place
            else f"{self.path}:{line}: {message}"
        )

    def text(self, key: str, default: str = _REQUIRED) -> str:
        """Return a text field."""
        value = self.value.get(key, default)
        if value is _REQUIRED:
            raise self.error(f"no field '{key}'")
        if not isinstance(value, str):
            raise self.error(f"'{key}' must be a text, not {value!r}")
        return value

    def real(self, key: str) -> float:
        """Return a finite number field."""
        value = self.value.get(key, _REQUIRED)
        if value is _REQUIRED:
            raise self.error(f"no field '{key}'")
        try:
            number = math.nan if isinstance(value, bool | str) else float(value)
        # JSON integers have no size limit, and the value may be a list or an object.
        except (OverflowError, TypeError):
            number = math.nan
        if not math.isfinite(number):
            raise self.error(f"'{key}' must be a finite number, not {value!r:.60}")
        return number

    def items(self, key: str, kind: type) -> list[Any]:
        """Return a field that is a list of values of one type."""
        value = self.value.get(key)
        # bool is a subclass of int, but users do not mean it as one.
        if not isinstance(value, list) or any(type(item) is not kind for item in value):
            raise self.error(f"'{key}' must be a list of {kind.__name__}")
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
