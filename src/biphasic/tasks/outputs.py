"""Result files: rows in the format of the suffix, written atomically."""

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
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from biphasic.errors import DataError
from biphasic.files import partial_path
from biphasic.locks import sole_writer

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
            types = {name: _arrow_type(form) for name, form in columns.items()}
            with pq.ParquetWriter(partial, pa.schema(list(types.items()))) as writer:
                yield lambda rows: writer.write_table(
                    pa.Table.from_pylist([dict(row) for row in rows], writer.schema)
                )
            return
        with partial.open("w", encoding="utf-8", newline="") as stream:
            yield _csv(stream, columns) if path.suffix.lower() == ".csv" else _json_lines(stream)


def _arrow_type(form: Any) -> pa.DataType:
    if isinstance(form, list):
        return pa.list_(_arrow_type(form[0]))
    if isinstance(form, Mapping):
        return pa.struct([(name, _arrow_type(each)) for name, each in form.items()])
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
# Called with the number of examples done and the total, if known.
Report = Callable[[int, int | None], None]


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
        of = f"of {self.num_examples:,}"
        cut = f"truncated: {self.num_cut:,} {of}, longer than {self.max_seqlen} tokens"
        counts = ((cut, self.num_cut), (f"empty: {self.num_empty:,} {of}", self.num_empty))
        return tuple(text for text, count in counts if count)


class Windows:
    """Examples in windows; `watch` reports the progress within a window."""

    def __init__(self, name: Path | str, *, total: int | None, report: Report | None) -> None:
        self._name = name
        self._total = total
        self._report = report
        self._done = self._size = 0

    def watch(self, read: int, of: int) -> None:
        """Report that a part of the window's tokens is read."""
        if self._report is not None:
            self._report(self._done + self._size * read // of, self._total)

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
