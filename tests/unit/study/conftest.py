"""Tiny tasks and data for studies, without reading any documentation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from biphasic.files import complete_folder, write_json

if TYPE_CHECKING:
    from biphasic.study.prepare import PreparedPaths
    from biphasic.training.loop import TrainingData


def write_task(folder: Path, *, num_examples: int = 12) -> Path:
    """Write a task whose label is the first word."""
    with complete_folder(folder) as partial:
        for split in ("train", "validation", "test"):
            rows = [
                {
                    "id": f"{split}-{n}",
                    "text": ("rows" if n % 2 else "shape") + " of",
                    "label": n % 2,
                }
                for n in range(num_examples)
            ]
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (partial / f"{split}.jsonl").write_text(text, encoding="utf-8")
        write_json(partial / "labels.json", ["even", "odd"])
        task = {"name": folder.name, "kind": "sc", "title": "First word", "metric": "accuracy"}
        write_json(partial / "task.json", task)
    return folder


@pytest.fixture(scope="session")
def tasks_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny tasks under the names of two built-in ones; never change it."""
    folder = tmp_path_factory.mktemp("tasks")
    for name in ("pydocs-sc", "pydocs-tc"):
        write_task(folder / name)
    return folder


@pytest.fixture(scope="session")
def make_task() -> Callable[..., Path]:
    """Return a writer of tiny tasks."""
    return write_task


@pytest.fixture(scope="session")
def prepared(
    training_data: TrainingData, tasks_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> PreparedPaths:
    """The shared tiny data, as a study finds them."""
    from biphasic.data.tokenizer import write_tokenizer
    from biphasic.study.prepare import PreparedPaths

    tokenizer = tmp_path_factory.mktemp("prepared") / "tokenizer"
    write_tokenizer(training_data.tokenizer, tokenizer)
    return PreparedPaths(
        tokenizer=tokenizer,
        train=training_data.corpus.folder,
        heldout=training_data.heldout.folder,
        tasks=tasks_folder,
    )
