"""Tiny tasks and data for studies, without reading any documentation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from biphasic.files import write_json
from biphasic.store import complete_folder

if TYPE_CHECKING:
    from biphasic.study.inputs.corpus import DataPaths
    from biphasic.study.inputs.tasks import PlannedTask
    from biphasic.study.settings.study import StudyConfig
    from biphasic.training.lineage import TrainingData


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


@pytest.fixture
def locate(tasks_folder: Path) -> Callable[..., tuple[PlannedTask, ...]]:
    """Return what finds a study's tasks: `locate(config)`, those below `tasks_folder`."""
    from biphasic.study.inputs import tasks as task_inputs
    from biphasic.study.study import Study

    def find(config: StudyConfig, folder: Path = tasks_folder) -> tuple[PlannedTask, ...]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(task_inputs, "prepare_builtin_tasks", lambda *_, **__: folder)
            resolver = task_inputs.TaskResolver(Study(config, folder), say=print)
            return resolver.resolve(missing="build", assumed=[])

    return find


@pytest.fixture(scope="session")
def prepared(training_data: TrainingData, tmp_path_factory: pytest.TempPathFactory) -> DataPaths:
    """The shared tiny data, as a study finds them."""
    from biphasic.data.tokens.tokenizer import write_tokenizer
    from biphasic.study.inputs.corpus import DataPaths

    tokenizer = tmp_path_factory.mktemp("prepared") / "tokenizer"
    write_tokenizer(training_data.tokenizer, tokenizer)
    return DataPaths(
        tokenizer=tokenizer,
        train=training_data.corpus.folder,
        heldout=training_data.heldout.folder,
    )


def write_retrieval(
    folder: Path, *, kind: str = "ir", trained_on: str | None = None, first: int = 0
) -> Path:
    """Write a retrieval task whose queries are words of their documents.

    Args:
        folder: Where to.
        kind: `ir` or `zs`.
        trained_on: The task to train on; then, as for `zs`, there is no training split.
        first: Number of the first document, so that tasks can differ.
    """
    words = ["rows", "shape", "index", "stream", "value", "window", "axis", "tokens", "layer"]
    splits = ("train", "validation", "test")
    held = splits if kind == "ir" and trained_on is None else splits[1:]
    with complete_folder(folder) as partial:
        (partial / "qrels").mkdir()
        corpus, queries = [], []
        for place, split in enumerate(splits):
            lines = ["query-id\tcorpus-id\tscore"]
            for word in range(3):
                name = f"d{first + 3 * place + word}"
                text = words[(first + 3 * place + word) % len(words)]
                corpus.append({"_id": name, "title": "", "text": f"the {text} of a model"})
                queries.append({"_id": f"q{name}", "text": text})
                lines.append(f"q{name}\t{name}\t1")
            if split in held:
                (partial / f"qrels/{split}.tsv").write_text("\n".join(lines) + "\n")
        for name, records in (("corpus", corpus), ("queries", queries)):
            text = "".join(json.dumps(record) + "\n" for record in records)
            (partial / f"{name}.jsonl").write_text(text)
        description = {"name": folder.name, "kind": kind, "trained_on": trained_on}
        write_json(partial / "task.json", {k: v for k, v in description.items() if v is not None})
    return folder


@pytest.fixture(scope="session")
def make_retrieval() -> Callable[..., Path]:
    """Return a writer of tiny retrieval tasks."""
    return write_retrieval


@pytest.fixture(scope="session")
def finished_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with one study that is finished, as far as others can tell."""
    from small_root import make_root

    return make_root(tmp_path_factory.mktemp("finished"), write_task)


@pytest.fixture
def root(finished_root: Path, tmp_path: Path) -> Path:
    """A copy of it; paths in the study's settings lead to the same texts."""
    return shutil.copytree(finished_root, tmp_path / "runs")
