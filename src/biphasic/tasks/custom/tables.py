"""Reads CSV and TSV with a header line."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from biphasic.errors import DataError
from biphasic.tasks.formats.rows import Row, read_lines

# The csv module's default limit of 131,072 characters is too short for long documents.
_LONGEST_FIELD = 2**31 - 1


def read_csv(path: Path) -> Iterator[Row]:
    """Read comma-separated values; quoted fields may hold commas, doubled quotes and line breaks.

    Raises:
        DataError: There is no header, or a record does not fit it.
    """
    limit = csv.field_size_limit(_LONGEST_FIELD)
    try:
        yield from _rows(path, _csv_records(path))
    finally:
        csv.field_size_limit(limit)


def read_tsv(path: Path) -> Iterator[Row]:
    """Read tab-separated values; quotes have no special meaning.

    Raises:
        DataError: There is no header, or a record does not fit it.
    """
    lines = ((number, line.rstrip("\r\n").split("\t")) for number, line in read_lines(path))
    return _rows(path, lines)


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


def _rows(path: Path, records: Iterator[tuple[int, list[str]]]) -> Iterator[Row]:
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
