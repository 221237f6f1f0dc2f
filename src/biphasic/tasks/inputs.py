"""Input files of texts, one example per row, read as a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from biphasic.config import closest, nearest
from biphasic.errors import DataError
from biphasic.files import expanded
from biphasic.rows import Row, plain_suffix, rows

InputFormat = Literal["jsonl", "csv", "tsv", "parquet", "txt"]
STANDARD_INPUT = "-"
TEXT_FIELD = "text"
_STANDARD_INPUT_FILE = Path("/dev/stdin")


@dataclass(frozen=True, slots=True)
class Input:
    """A file of examples, or a stream from another program, which can be read only once."""

    path: Path
    format: InputFormat
    is_stream: bool

    def rows(self) -> Iterator[Row]:
        """Read the examples from the beginning, one at a time."""
        yield from rows(self.path, self.format)


@dataclass(frozen=True, slots=True)
class ListedInput:
    """Examples in memory."""

    values: Sequence[Mapping[str, Any]]
    path: Path = Path("list")
    is_stream: bool = False

    def rows(self) -> Iterator[Row]:
        """Return the examples, numbered from 1."""
        for number, value in enumerate(self.values, start=1):
            yield Row(self.path, number, dict(value))


AnyInput = Input | ListedInput
# A file of examples, `-` for standard input, or a list: of texts, of tuples, or of rows by name.
Source = Path | str | Sequence[str] | Sequence[Sequence[str]] | Sequence[Mapping[str, Any]]


def open_source(source: Source, fields: Sequence[str], *, format: str | None = None) -> AnyInput:
    """Open a file of examples, or a list whose texts are the `fields` of an example."""
    if isinstance(source, Path | str):
        return open_input(str(source), format=format)
    refuse_table(source)
    return ListedInput([_named(value, fields, place) for place, value in enumerate(source, 1)])


def refuse_table(source: object) -> None:
    """Refuse a mapping or a data frame: the names of its columns would be read as texts."""
    if isinstance(source, Mapping) or hasattr(source, "columns"):
        raise DataError(
            f"a {type(source).__name__}, not a list; give its texts, as list(table['text']), or "
            "its rows, as table.to_dict('records')"
        )


def _named(value: Any, fields: Sequence[str], place: int) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    # Anything that is no text, such as NaN for a missing one, is refused when its row is read.
    is_several = isinstance(value, Iterable) and not isinstance(value, str | bytes)
    texts = tuple(value) if is_several else (value,)
    if len(texts) != len(fields):
        raise DataError(
            f"list:{place}: {len(texts)} texts, not {len(fields)} ({', '.join(fields)})"
        )
    return dict(zip(fields, texts, strict=True))


def open_input(source: str, *, format: str | None = None) -> Input:
    """Find a file of examples, or `-` for standard input, and its format, if it is not given."""
    known = get_args(InputFormat)
    if format is not None and format not in known:
        raise DataError(f"unknown format '{format}'{nearest(format, known)}")
    if source == STANDARD_INPUT:
        return Input(_STANDARD_INPUT_FILE, cast(InputFormat, format or "txt"), is_stream=True)
    path = expanded(source)
    if path.is_dir():
        raise DataError(f"{path}: a folder, not a file of texts; give the model first, then a file")
    is_stream = path.is_fifo()  # such as that of a shell's `<(...)`
    if not path.is_file() and not is_stream:
        raise DataError(f"{path}: no such file")
    stated = format or plain_suffix(path).removeprefix(".").lower()
    if stated not in known:
        suffixes = ", ".join(f".{name}" for name in known)
        raise DataError(
            f"{path}: unknown suffix; a file of texts ends in {suffixes} (.gz or .zst may follow "
            "all except .parquet), or set --format"
        )
    if stated == "parquet" and path.suffix != ".parquet":
        raise DataError(f"{path}: a compressed Parquet file cannot be read; unpack it")
    return Input(path, cast(InputFormat, stated), is_stream=is_stream)


def check_rows(source: AnyInput, check: Callable[[Row], object]) -> int | None:
    """Read a whole input before any work and return its number of rows; None for a stream."""
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
    """Check that a row has some columns."""
    for column in columns:
        if column not in row.value:
            there = [str(name) for name in row.value]
            listed = ", ".join(map(repr, there)) or "none"
            hint = closest(column, there)
            raise row.error(
                f"no column '{column}'{hint}; there are {listed}; name it with --column"
            )
