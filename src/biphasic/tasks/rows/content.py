"""The content of a task before it is written as a folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TaskContent:
    """Content of a task folder besides its description; its rows are read once."""

    splits: Mapping[str, Iterable[Mapping[str, Any]]] = field(default_factory=dict)
    labels: Sequence[str] = ()
    corpus: Iterable[Mapping[str, Any]] | None = None  # `{"_id", "title", "text"}`
    queries: Iterable[Mapping[str, Any]] | None = None  # `{"_id", "text"}`
    qrels: Mapping[str, Iterable[tuple[str, str, int]]] = field(default_factory=dict)


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON objects, one per line."""
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n")
