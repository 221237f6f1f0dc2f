"""Files of texts that somebody wants read: one example a row, as a stream."""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from biphasic.config import nearest
from biphasic.errors import DataError, reading
from biphasic.files import expanded
from biphasic.tasks.custom.files import plain_suffix
from biphasic.tasks.custom.tables import csv_rows, tsv_rows
from biphasic.tasks.formats.rows import Row, read_jsonl, read_lines

InputFormat = Literal["jsonl", "csv", "tsv", "parquet", "txt"]
STANDARD_INPUT = "-"
TEXT_FIELD = "text"
_STANDARD_INPUT_FILE = Path("/dev/stdin")
_PARQUET_ROWS = 256


@dataclass(frozen=True, slots=True)
class Input:
    """A file of examples, or what comes in from another program.

    Attributes:
        path: The file.
        format: How it is read.
        is_stream: Whether it can be read only once.
    """

    path: Path
    format: InputFormat
    is_stream: bool

    def rows(self) -> Iterator[Row]:
        """Read the examples from the beginning, one at a time.

        Raises:
            DataError: The file is missing or damaged, or a row is not what it should be.
        """
        with reading(self.path, DataError):
            yield from _READERS[self.format](self.path)


def open_input(source: str, *, format: str | None = None) -> Input:
    """Find a file of examples, and how to read it.

    Args:
        source: A path, or `-` for standard input.
        format: One of `InputFormat`; by default what the suffix says, and lines of text from
            standard input.

    Raises:
        DataError: There is no such file, or its format is not known.
    """
    known = get_args(InputFormat)
    if format is not None and format not in known:
        raise DataError(f"no format '{format}'{nearest(format, known)}")
    is_stream = source == STANDARD_INPUT
    path = _STANDARD_INPUT_FILE if is_stream else expanded(source)
    if is_stream:
        return Input(path, _one_of(format or "txt"), is_stream)
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    stated = format or plain_suffix(path).removeprefix(".").lower()
    if stated not in known:
        suffixes = ", ".join(f".{name}" for name in known)
        raise DataError(
            f"{path}: unknown suffix; a file of texts ends in {suffixes} (.gz may follow all but "
            "the fourth), or --format says what it is"
        )
    if stated == "parquet" and path.suffix == ".gz":
        raise DataError(f"{path}: a compressed Parquet file cannot be read; unpack it")
    return Input(path, _one_of(stated), is_stream)


def _one_of(name: str) -> InputFormat:
    return next(known for known in get_args(InputFormat) if known == name)


def check_rows(source: Input, check: Callable[[Row], object]) -> int | None:
    """Read a whole input once, before any work; return its number of rows.

    A stream is left alone, for it would be gone: then the answer is None.

    Args:
        source: The input.
        check: Raises an error for a row that cannot be used.

    Raises:
        DataError: Something is wrong with a row, or there is none.
    """
    if source.is_stream:
        return None
    count = 0
    for row in source.rows():
        check(row)
        count += 1
    if not count:
        raise DataError(f"{source.path}: empty; there is nothing to read")
    return count


def require_columns(row: Row, columns: Iterable[str]) -> None:
    """Check that a row has some columns.

    Raises:
        DataError: One is missing; the message says which there are.
    """
    for column in columns:
        if column not in row.value:
            raise row.error(_missing(column, row.value))


def _missing(column: str, there: Mapping[str, object]) -> str:
    close = nearest(column, _names(there))
    hint = close if "did you mean" in close else ""
    listed = ", ".join(map(repr, _names(there))) or "none"
    return f"no column '{column}'{hint}; there are {listed}"


def _names(there: Mapping[str, object]) -> Collection[str]:
    return [str(name) for name in there]


def _text_rows(path: Path) -> Iterator[Row]:
    for number, line in read_lines(path):
        yield Row(path, number, {TEXT_FIELD: line.rstrip("\r\n")})


def _csv_rows(path: Path) -> Iterator[Row]:
    # The csv module's own limit, 131,072 characters, is less than a long document has.
    limit = csv.field_size_limit(2**31 - 1)
    try:
        yield from csv_rows(path)
    finally:
        csv.field_size_limit(limit)


def _parquet_rows(path: Path) -> Iterator[Row]:
    try:
        with pq.ParquetFile(path, pre_buffer=False) as parquet:
            number = 0
            for batch in parquet.iter_batches(_PARQUET_ROWS):
                for value in batch.to_pylist():
                    number += 1
                    yield Row(path, number, value)
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        told = " ".join(str(error).split())
        raise DataError(f"{path}: damaged, or no Parquet file ({told})") from None


_READERS: Mapping[str, Callable[[Path], Iterator[Row]]] = {
    "jsonl": read_jsonl,
    "csv": _csv_rows,
    "tsv": tsv_rows,
    "parquet": _parquet_rows,
    "txt": _text_rows,
}
