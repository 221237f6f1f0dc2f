"""Rows of files, each with its place for error messages: JSON lines, CSV, TSV, Parquet, text.

`.gz` and `.zst` are decompressed, in bounded memory.
"""

from __future__ import annotations

import codecs
import csv
import io
import math
import re
import unicodedata
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zstandard

from biphasic.amounts import count
from biphasic.errors import DataError, is_system_fault, one_line, reading, repeated
from biphasic.files import json_value

if TYPE_CHECKING:
    import pyarrow as pa

_REQUIRED: Any = object()
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
# The csv module's default limit of 131,072 characters is too short for long documents.
_LONGEST_FIELD = 2**31 - 1
_WIDE_BYTES = 1 << 10  # at the beginning of a file, in which NUL bytes show UTF-16
_LONGEST_LINE = 1 << 28  # in bytes; far longer than any document
# Four compressed bytes can hold 128 KiB, so this decompresses to at most 16 MiB.
_READ_BYTES = 1 << 9
# Text compresses at most a hundredfold. Small files may compress more.
_MOST_RATIO = 1000
_LARGE = 1 << 24
_PARQUET_ROWS = 256
_PARQUET_BUFFER_BYTES = 1 << 20
_PLURAL = {str: "texts", int: "whole numbers"}
# Signs that nobody sees in a name: zero-width ones, direction marks, the soft hyphen; spaces that
# do not break are spaces.
_UNSEEN = dict.fromkeys([0xAD, 0x2060, 0xFEFF, *range(0x200B, 0x2010)])
_UNSEEN |= dict.fromkeys([0xA0, 0x2007, 0x202F], " ")


def plain_name(name: str) -> str:
    """Return a name from outside as names are compared: in NFC, without what nobody sees."""
    # ASCII has none of them, and most labels, tags and ids are ASCII.
    plain = name if name.isascii() else unicodedata.normalize("NFC", name.translate(_UNSEEN))
    return plain.strip()


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

    @property
    def where(self) -> str:
        """File and line, or the place in the file."""
        return f"{self.path}: {self.place}" if self.place else f"{self.path}:{self.number}"

    def with_value(self, value: dict[str, Any]) -> Row:
        """Return a row with other fields at the same place; `replace` takes thrice the time."""
        return Row(self.path, self.number, value, self.place, self.is_vertical)

    def error(self, message: str, *, token: int = 0) -> DataError:
        """Return an error that names file and line, or the line of `token` if tokens have lines."""
        where = f"{self.path}:{self.number + token}" if self.is_vertical else self.where
        return DataError(f"{where}: {message}")

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


def rows(
    path: Path,
    format: str | None = None,
    *,
    skips_blank: bool = False,
    choose: Callable[[pa.Schema], list[str]] | None = None,
) -> Iterator[Row]:
    """Yield the rows of a file, in its format or that of its suffix.

    Repeated names of columns and keys are refused. `skips_blank` leaves out blank JSON lines;
    `choose` returns the columns of a Parquet file that are read, by default all.
    """
    format = format or plain_suffix(path).removeprefix(".").lower()
    with reading(path, DataError):
        if format == "jsonl":
            yield from _json_rows(path, skips_blank=skips_blank)
        elif format == "parquet":
            yield from _parquet_rows(path, choose)
        else:
            yield from _TEXT_READERS[format](path)


def plain_suffix(path: Path) -> str:
    """Return a file's suffix without that of compression."""
    is_packed = path.suffix.lower() in _DECOMPRESSORS
    return path.with_suffix("").suffix if is_packed else path.suffix


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line, line ends included, decompressed by its suffix."""
    with reading(path, DataError):
        number = 0
        try:
            for number, line in enumerate(_byte_lines(path), start=1):
                yield number, _decode(line, path=path, number=number)
        except FileNotFoundError:
            raise DataError(f"{path}: no such file") from None
        except _PACKING_ERRORS as error:
            raise DataError(
                f"{path}: damaged {path.suffix} data after line {number} ({error}); copy it again"
            ) from None


def _decode(line: bytes, *, path: Path, number: int) -> str:
    if number == 1:
        refuse_wide(line, where=f"{path}:1")
        # Some programs mark UTF-8 with a byte order mark.
        line = line.removeprefix(codecs.BOM_UTF8)
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        place = f"byte 0x{line[error.start]:02x} after {error.start} others"
        raise DataError(f"{path}:{number}: not UTF-8 ({place}); save the file as UTF-8") from None
    if "\0" in text:
        raise DataError(f"{path}:{number}: a NUL byte; the file is damaged, or not UTF-8")
    return text


def refuse_wide(content: bytes, *, where: Path | str) -> None:
    """Refuse UTF-16 and UTF-32, which UTF-8 may decode as text with NUL between its characters."""
    start = content[:_WIDE_BYTES]
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)):
        fault = "begins with a byte order mark of UTF-16 or UTF-32"
    elif 4 * start.count(0) >= len(start) > 1:  # half of all bytes in English as UTF-16
        fault = f"{start.count(0)} of the first {len(start)} bytes are NUL, as in UTF-16"
    else:
        return
    raise DataError(f"{where}: not UTF-8: {fault}; convert the file to UTF-8")


def _json_rows(path: Path, *, skips_blank: bool) -> Iterator[Row]:
    where = str(path)
    for number, line in read_lines(path):
        if skips_blank and not line.strip():
            continue
        value = parse_json(line, where=f"{where}:{number}")
        if not isinstance(value, dict):
            raise DataError(f"{path}:{number}: expected one JSON object per line")
        yield Row(path, number, value)


def parse_json(text: str, *, where: str) -> Any:
    """Parse JSON text."""
    if not text or text.isspace():
        raise DataError(f"{where}: not valid JSON (empty)")
    try:
        return json_value(text)
    # Not only JSONDecodeError: integers of thousands of digits raise its parent class.
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON ({error})") from None


def _csv_rows(path: Path) -> Iterator[Row]:
    """Read comma-separated values; quoted fields may hold commas, quotes and line breaks."""
    limit = csv.field_size_limit(_LONGEST_FIELD)
    try:
        yield from _table_rows(path, _csv_records(path))
    finally:
        csv.field_size_limit(limit)


def _tsv_rows(path: Path) -> Iterator[Row]:
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


def _check_header(header: Sequence[str], *, where: Path | str) -> None:
    """Refuse a name that two columns have: a row would keep the value of the last one alone."""
    if names := repeated(header):
        raise DataError(f"{where}: the column '{names[0]}' is named twice")


def _table_rows(path: Path, records: Iterator[tuple[int, list[str]]]) -> Iterator[Row]:
    _, header = next(records, (1, []))
    if not any(header):
        raise DataError(f"{path}:1: no header; the first line must name the columns")
    if len(header) == 1 and ";" in header[0]:
        raise DataError(f"{path}:1: semicolons separate the columns; save the file with commas")
    _check_header(header, where=f"{path}:1")
    for number, fields in records:
        if fields == header and len(header) > 1:  # a single text may be that of the header
            raise DataError(f"{path}:{number}: the header is repeated; remove this line")
        if fields in ([], [""]) and len(header) > 1:
            raise DataError(f"{path}:{number}: an empty line; remove it")
        if not fields:
            raise DataError(f'{path}:{number}: an empty line; remove it, or write "" for no text')
        if len(fields) != len(header):
            raise DataError(
                f"{path}:{number}: {count(len(fields), 'field')}, but the header names "
                f"{len(header)}: {', '.join(header)}"
            )
        yield Row(path, number, dict(zip(header, fields, strict=True)))


def _text_rows(path: Path) -> Iterator[Row]:
    for number, line in read_lines(path):
        yield Row(path, number, {"text": line.rstrip("\r\n")})


def _parquet_rows(path: Path, choose: Callable[[pa.Schema], list[str]] | None) -> Iterator[Row]:
    import pyarrow as pa  # noqa: PLC0415 - keeps other commands fast to start
    import pyarrow.parquet as pq  # noqa: PLC0415

    if path.is_fifo():  # its end would be read first
        raise DataError(f"{path}: Parquet cannot be read from a pipe; write it to a file")
    # Both keep memory flat: by default the whole file is read and kept.
    buffering = {"pre_buffer": False, "buffer_size": _PARQUET_BUFFER_BYTES}
    try:
        with pq.ParquetFile(path, **buffering) as parquet:
            schema = parquet.schema_arrow
            _check_header(schema.names, where=path)
            batches = parquet.iter_batches(
                _PARQUET_ROWS, columns=choose(schema) if choose else None
            )
            values = chain.from_iterable(batch.to_pylist() for batch in batches)
            for number, value in enumerate(values, start=1):
                yield Row(path, number, value)
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        if is_system_fault(error):
            raise
        raise DataError(f"{path}: damaged, or not a Parquet file ({one_line(error)})") from None


_TEXT_READERS: Mapping[str, Callable[[Path], Iterator[Row]]] = {
    "csv": _csv_rows,
    "tsv": _tsv_rows,
    "txt": _text_rows,
}


_DECOMPRESSORS: Mapping[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.decompressobj(wbits=31),  # 31: a gzip header and the largest window
    ".zst": lambda: zstandard.ZstdDecompressor().decompressobj(),
}
# Errors raised while damaged data are decompressed.
_PACKING_ERRORS = (zlib.error, zstandard.ZstdError, EOFError)


def _byte_lines(file: Path) -> Iterator[bytes]:
    r"""Yield a file's lines, including `\n`, decompressed if its suffix is `.gz` or `.zst`."""
    open_decompressor = _DECOMPRESSORS.get(file.suffix.lower())
    with file.open("rb") as stream:
        if open_decompressor is None:
            lines = iter(partial(stream.readline, _LONGEST_LINE + 1), b"")
        else:
            lines = _split(_decompress(file, stream, open_decompressor), file)
        for line in lines:
            if len(line) > _LONGEST_LINE:
                raise _too_long(file)
            yield line


def _too_long(file: Path) -> DataError:
    return DataError(
        f"{file}: a line of more than {_LONGEST_LINE >> 20} MiB; is this a text file, with one "
        "document a line?"
    )


def _decompress(
    file: Path, stream: io.BufferedReader, open_decompressor: Callable[[], Any]
) -> Iterator[bytes]:
    # zstandard's own reader is not used: it accepts a truncated file as complete.
    decompressor = None
    num_unpacked = 0
    rest = stream.read(_READ_BYTES)
    if not rest:
        raise EOFError("it is empty")
    while compressed := rest or stream.read(_READ_BYTES):
        decompressor = decompressor or open_decompressor()
        try:
            unpacked = decompressor.decompress(compressed)
        except zstandard.ZstdError as error:
            if "too much memory" not in str(error):
                raise
            raise DataError(
                f"{file}: compressed with a window of more than 128 MiB; compress it again with "
                "--long=27 or less"
            ) from None
        num_unpacked += len(unpacked)
        if num_unpacked > max(_LARGE, _MOST_RATIO * stream.tell()):
            raise DataError(
                f"{file}: decompresses to more than {_MOST_RATIO:,} times its size, unlike text; "
                "decompress it manually to check its content"
            )
        yield unpacked
        rest = b""
        if decompressor.eof:
            rest, decompressor = decompressor.unused_data, None
    if decompressor is not None:
        raise EOFError("it ends too early")


def _split(chunks: Iterator[bytes], file: Path) -> Iterator[bytes]:
    """Split a stream of bytes after its line ends; the parts of a long line are joined once."""
    pending: list[bytes] = []
    num_pending = 0
    for chunk in chunks:
        *ended, last = chunk.split(b"\n")
        for part in ended:
            yield b"".join((*pending, part, b"\n"))
            pending, num_pending = [], 0
        pending.append(last)
        num_pending += len(last)
        if num_pending > _LONGEST_LINE:
            raise _too_long(file)
    if num_pending:
        yield b"".join(pending)
