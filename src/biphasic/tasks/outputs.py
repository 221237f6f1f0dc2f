"""Result files: rows in the format of the suffix, written atomically."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
    writer.writerow(columns)

    def write(rows: Rows) -> None:
        for row in rows:
            writer.writerow([_cell(row.get(name)) for name in columns])

    return write


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
