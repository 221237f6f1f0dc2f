"""Writes small files in the field's formats, and prepares tasks of them."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from biphasic.errors import DataError
from biphasic.tasks.folder import load_task
from biphasic.tasks.records import TaskInfo
from biphasic.tasks.source import find_source, prepare_task

QRELS = "query-id\tcorpus-id\tscore\n"


class Store:
    """Prepares tasks in one store, and keeps what was said."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder, []

    def folder_of(self, source: Any, **settings: Any) -> Path:
        found = find_source(str(source), **settings)
        return prepare_task(found, store=self.folder, say=self.said.append)

    def task(self, source: Any) -> Any:
        return load_task(self.folder_of(source))


def task_info(kind: Any, metric: str = "m") -> TaskInfo:
    return TaskInfo("t", kind, "T", metric, "0" * 64)


def write_splits(folder: Path, suffix: str, content: str | dict[str, str], *names: str) -> None:
    """Write the same content, or one for each split."""
    for split in names or ("train", "dev", "test"):
        text = content if isinstance(content, str) else content.get(split, content["train"])
        (folder / f"{split}{suffix}").write_bytes(text.encode())


def jsonl(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_csv(path: Path, header: list[str], rows: list) -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerows([header, *rows])


def write_beir(folder: Path, *splits: str) -> None:
    (folder / "qrels").mkdir()
    docs = [{"_id": "d1", "title": "T", "text": "one", "metadata": {}}, {"_id": 2, "text": "two"}]
    (folder / "corpus.jsonl").write_text(jsonl(*docs))
    (folder / "queries.jsonl").write_text(
        jsonl(*({"_id": f"q{n}", "text": f"t{n}"} for n in range(9)))
    )
    for number, split in enumerate(splits):
        rows = "".join(f"q{3 * number + n}\td1\t1\n" for n in range(3))
        (folder / "qrels" / f"{split}.tsv").write_text(QRELS + rows)


def write_yaml(custom: Path, text: str) -> Path:
    path = custom / "task.yaml"
    path.write_text(text)
    return path


def refused(store: Store, source: Any, message: str, kind: type[Exception] = DataError) -> None:
    with pytest.raises(kind, match=message) as caught:
        store.folder_of(source)
    assert "\n" not in str(caught.value)
    tasks = store.folder / "tasks"
    assert not tasks.exists() or list(tasks.iterdir()) == []


def at(custom: Path, name: str, line: int) -> str:
    return re.escape(f"{custom / name}:{line}: ")
