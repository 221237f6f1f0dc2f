"""The content of a task before it is written as a folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TaskContent:
    """Content of a task folder besides its description; its rows are read once.

    Attributes:
        splits: rows by split, of kinds with an example in each row.
        labels: names of the labels; empty if the kind has none.
        corpus: retrieval: documents, `{"_id", "title", "text"}`.
        queries: retrieval: queries, `{"_id", "text"}`.
        qrels: retrieval: query, document and score, by split.
    """

    splits: Mapping[str, Iterable[Mapping[str, Any]]] = field(default_factory=dict)
    labels: Sequence[str] = ()
    corpus: Iterable[Mapping[str, Any]] | None = None
    queries: Iterable[Mapping[str, Any]] | None = None
    qrels: Mapping[str, Iterable[tuple[str, str, int]]] = field(default_factory=dict)


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON objects, one per line."""
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n")
