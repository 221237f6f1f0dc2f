"""Files of texts, read in windows of bounded memory, and the files written for them."""

from __future__ import annotations

import csv
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

from biphasic.config import closest, nearest
from biphasic.errors import DataError
from biphasic.files import expanded, partial_path
from biphasic.locks import sole_writer
from biphasic.progress import AmountReport
from biphasic.rows import Row, plain_suffix, rows

if TYPE_CHECKING:
    import pyarrow as pa

InputFormat = Literal["jsonl", "csv", "tsv", "parquet", "txt"]
STANDARD_INPUT = "-"
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
    if stated == "parquet" and path.suffix.lower() in {".gz", ".zst"}:
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


def refuse_long(
    rows: Iterable[tuple[Row, bool]],
    *,
    limit: int,
    remedy: str,
    total: int | None,
    field: str = "",
) -> None:
    """Refuse the first row that is too long for a model, or whose `field` is; count them all."""
    long = (row for row, is_long in rows if is_long)
    if (first := next(long, None)) is not None:
        number = 1 + sum(1 for _ in long)
        every = f" ({number:,} of {total:,} are)" if total else ""
        what = f"the {field} is longer" if field else "longer"
        raise first.error(f"{what} than the {limit:,} tokens that the model reads{every}; {remedy}")


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


Rows = Sequence[Mapping[str, Any]]
Write = Callable[[Rows], None]


def check_output(path: Path, suffixes: Sequence[str]) -> None:
    """Check an output path before any work."""
    if path.suffix.lower() not in suffixes:
        raise DataError(f"{path}: unknown suffix; --out ends in {', '.join(suffixes)}")
    if path.exists() or path.is_symlink():
        raise DataError(f"{path}: already exists; choose another file, or delete it")
    if not path.parent.is_dir():
        raise DataError(f"{path.parent}: no such folder; create it first")


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path; rename it to `path` on success, delete it otherwise."""
    # Another file is never replaced.
    partial = partial_path(path)
    with sole_writer(path):
        try:
            yield partial
            with partial.open("rb") as written:
                os.fsync(written.fileno())
            try:
                os.link(partial, path)  # unlike a rename, fails if `path` exists
            except OSError:
                # Some file systems (exFAT, network shares) have no hard links.
                if path.exists() or path.is_symlink():
                    raise DataError(
                        f"{path}: created by another process; choose another file"
                    ) from None
                partial.rename(path)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def row_writer(
    path: Path | list[Mapping[str, Any]] | None, columns: Mapping[str, Any]
) -> Iterator[Write]:
    """Yield a function that adds rows to a file, a list, or standard output as JSON lines."""
    # Forms of columns are those of `TaskKind.predicted`.
    if isinstance(path, list):
        yield path.extend
        return
    if path is None:
        yield _json_lines(sys.stdout)
        return
    with new_file(path) as partial:
        if path.suffix.lower() == ".parquet":
            import pyarrow as pa  # noqa: PLC0415 - keeps other commands fast to start
            import pyarrow.parquet as pq  # noqa: PLC0415

            types = {name: _arrow_type(form) for name, form in columns.items()}
            with pq.ParquetWriter(partial, pa.schema(list(types.items()))) as writer:
                yield lambda rows: writer.write_table(
                    pa.Table.from_pylist([dict(row) for row in rows], writer.schema)
                )
            return
        with partial.open("w", encoding="utf-8", newline="") as stream:
            yield _csv(stream, columns) if path.suffix.lower() == ".csv" else _json_lines(stream)


def _arrow_type(form: Any) -> pa.DataType:
    import pyarrow as pa  # noqa: PLC0415

    if isinstance(form, list):
        return pa.list_(_arrow_type(form[0]))
    if isinstance(form, Mapping):
        return pa.struct([(name, _arrow_type(part)) for name, part in form.items()])
    return {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}[form]


ROW_SUFFIXES = (".jsonl", ".csv", ".parquet")  # suffixes that `row_writer` supports


def _json_lines(stream: Any) -> Write:
    def write(rows: Rows) -> None:
        for row in rows:
            present = {name: value for name, value in row.items() if value is not None}
            stream.write(json.dumps(present, ensure_ascii=False, allow_nan=False) + "\n")

    return write


def _csv(stream: Any, columns: Mapping[str, Any]) -> Write:
    writer = csv.writer(stream)
    # A value for each label has columns of its own.
    parts = [
        (name, part)
        for name, form in columns.items()
        for part in (form if isinstance(form, Mapping) else ("",))
    ]
    writer.writerow([f"{name}.{part}" if part else name for name, part in parts])

    def write(rows: Rows) -> None:
        for row in rows:
            writer.writerow(
                [_cell(row[name].get(part) if part else row.get(name)) for name, part in parts]
            )

    return write


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


Item = TypeVar("Item")


@dataclass(frozen=True)
class Summary:
    """Counts and time of a computation on examples."""

    num_examples: int
    num_cut: int  # truncated examples
    num_empty: int
    max_seqlen: int  # in tokens
    seconds: float  # without loading the model

    def notes(self) -> tuple[str, ...]:
        """Return how many inputs were truncated, and how many are empty."""
        total = f"of {self.num_examples:,}"
        cut = f"truncated: {self.num_cut:,} {total}, longer than {self.max_seqlen} tokens"
        counts = ((cut, self.num_cut), (f"empty: {self.num_empty:,} {total}", self.num_empty))
        return tuple(text for text, count in counts if count)


class Windows:
    """Examples in windows; `watch` reports the progress within a window."""

    def __init__(self, name: Path | str, *, total: int | None, report: AmountReport | None) -> None:
        self._name = name
        self._total = total
        self._report = report
        self._done = self._size = 0

    def watch(self, read: int, total: int) -> None:
        """Report that a part of the window's tokens is read."""
        if self._report is not None:
            self._report(self._done + self._size * read // total, self._total)

    def run(
        self,
        windows: Iterable[list[Item]],
        compute: Callable[[list[Item]], tuple[int, int]],
        *,
        max_seqlen: int,
    ) -> Summary:
        """Compute each window; `compute` returns the numbers of truncated and empty examples."""
        started, num_cut, num_empty = time.perf_counter(), 0, 0
        for window in windows:
            self._size = len(window)
            cut, empty = compute(window)
            num_cut, num_empty = num_cut + cut, num_empty + empty
            self._done += self._size
        if not self._done:
            raise DataError(f"{self._name}: empty; there is nothing to read")
        seconds = time.perf_counter() - started
        return Summary(self._done, num_cut, num_empty, max_seqlen, seconds)
