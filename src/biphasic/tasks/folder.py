"""The canonical task folder: its description, reading and writing it.

`docs/formats.md` describes the layout of each kind. Nothing is skipped or repaired: an unusable
record is an error that names file and line.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from biphasic.config import nearest, parse_config
from biphasic.data.text.near_duplicates import comparable
from biphasic.errors import ConfigError, DataError, reading
from biphasic.files import digest, file_sha256, read_json, write_json
from biphasic.store import complete_folder
from biphasic.tasks.kinds.registry import KINDS, KindName, kinds_with
from biphasic.tasks.kinds.text import named_columns
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS, ExampleTask, Task, TaskContent, TaskInfo
from biphasic.tasks.rows.beir import write_qrels
from biphasic.tasks.settings import PAIR_TEMPLATE, TaskSettings

DESCRIPTION = "task.json"


class KindSettings(TaskSettings):
    """Settings that the kind of their task has."""

    kind: KindName
    """Kind of task."""

    @model_validator(mode="after")
    def _fits_kind(self) -> Self:
        for setting in dict.fromkeys(n for kind in KINDS.values() for n in kind.examples.settings):
            if getattr(self, setting, None) is None:
                continue
            if setting not in KINDS[self.kind].examples.settings:
                known = " or ".join(kinds_with(setting))
                raise ValueError(f"'{setting}' is for tasks of kind {known}, not {self.kind}")
        return self


class TaskDescription(KindSettings):
    """Description of a task without its examples: `task.json`."""

    name: str = Field(min_length=1)
    """Name in reports."""
    origin: dict[str, Any] = Field(default_factory=dict)
    """Source of the examples, human-readable."""

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        kind = KINDS.get(str(raw.get("kind")))
        first = kind.facts.metric_keys[0] if kind else ""
        title, metric = raw.get("title") or raw.get("name", ""), raw.get("metric") or first
        return {**raw, "title": title, "metric": metric}

    @model_validator(mode="after")
    def _has_metric(self) -> Self:
        metrics = KINDS[self.kind].facts.metric_keys
        if self.metric not in metrics:
            known = nearest(self.metric, metrics)
            raise ValueError(f"no metric '{self.metric}' for kind '{self.kind}'{known}")
        return self


def read_description(folder: Path, *, kind: str | None = None) -> TaskDescription:
    """Read the description of a task folder; its `task.json` may not contradict `kind`."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such task folder")
    path = folder / DESCRIPTION
    raw = read_json(path) if path.is_file() else {}
    if not isinstance(raw, dict):
        raise DataError(f"{path}: expected a JSON object")
    named_kind = raw.get("kind", kind)
    if named_kind is None:
        lack = f"{path}: no 'kind'" if path.is_file() else f"{folder}: no {DESCRIPTION}"
        raise DataError(f"{lack}; set the kind of the task: {', '.join(KINDS)}")
    if kind is not None and named_kind not in {kind, KINDS[kind].derived_from}:
        raise DataError(f"{path}: the task is of kind '{named_kind}', not '{kind}'")
    settings = {"name": folder.resolve().name, **raw, "kind": named_kind}
    try:
        description = parse_config(TaskDescription, settings, where=str(path))
        parse_config(FinetuneProtocol, description.protocol, where=f"{path}: protocol")
    except ConfigError as error:
        raise DataError(str(error)) from None
    return description


def task_files(folder: Path, description: TaskDescription) -> list[str]:
    """Return the file names of a task, in a fixed order."""
    kind = KINDS[description.kind]
    names = kind.examples.file_names(kind.splits(trained_on=description.trained_on))
    for name in names:
        if not (folder / name).is_file():
            raise DataError(f"{folder / name}: no such file; a task of kind '{kind.name}' needs it")
    further = (name for name in kind.examples.optional_files if name not in names)
    return [*names, *(name for name in further if (folder / name).is_file())]


def write_task_folder(folder: Path, description: TaskDescription, content: TaskContent) -> None:
    """Write a complete task folder; `folder` must not exist, or already be complete."""
    with complete_folder(folder) as partial:
        if content.labels:
            write_json(partial / "labels.json", list(content.labels))
        texts = {"corpus": content.corpus, "queries": content.queries}
        for name, rows in {**content.splits, **texts}.items():
            if rows is not None:
                with (partial / f"{name}.jsonl").open("w", encoding="utf-8", newline="\n") as file:
                    for row in rows:
                        file.write(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n")
        for split, judgements in content.qrels.items():
            write_qrels(partial / "qrels" / f"{split}.tsv", judgements)
        write_json(partial / DESCRIPTION, description.model_dump(exclude_defaults=True))
        task_files(partial, description)


def load_task(folder: Path) -> Task:
    """Read a task folder."""
    description = read_description(folder)
    files = task_files(folder, description)
    info = TaskInfo(
        name=description.name,
        kind=description.kind,
        title=description.title,
        metric=description.metric,
        sha256=digest(_determinants(folder, description, files)),
        trained_on=description.trained_on,
    )
    with reading(folder, DataError):
        task = KINDS[description.kind].examples.read(folder, description, info, files)
    if isinstance(task, ExampleTask):
        columns = description.origin.get("settings", {}).get("columns", {})
        task = replace(task, columns=named_columns(columns.get("text", ())))
    return replace(task, info=replace(task.info, overlaps=count_overlaps(task)))


def _determinants(folder: Path, description: TaskDescription, files: list[str]) -> dict[str, Any]:
    """Return everything that determines the examples."""
    return {
        "kind": description.kind,
        "files": {name: file_sha256(folder / name) for name in files},
        "template": PAIR_TEMPLATE if description.template is None else description.template,
        **KINDS[description.kind].examples.templates(description),
        **({"tokens": description.tokens} if description.tokens else {}),
    }


def count_overlaps(task: Task, trainer: Task | None = None) -> dict[str, int]:
    """Count the examples of later splits that occur in earlier ones, by `"train/test"` etc."""
    # Equal are both texts of a pair, the words, question and context, or the query with its prompt.
    # A trainer's training split replaces the task's own.
    keys = {split: list(_keys(task, split)) for split in SPLITS}
    if trainer is not None:
        keys["train"] = list(_keys(trainer, "train"))
    counts = {}
    for earlier, later in combinations(SPLITS, 2):
        known = set(keys[earlier])
        if count := sum(key in known for key in keys[later]):
            counts[f"{earlier}/{later}"] = count
    return counts


def _keys(task: Task, split: str) -> Iterator[bytes]:
    for given in KINDS[task.info.kind].examples.inputs(task, split):
        text = given if isinstance(given, str) else "\n".join(given)
        yield hashlib.blake2b(comparable(text).encode("utf-8"), digest_size=16).digest()
