"""Task files and task folders: descriptions of tasks, and their reading and writing.

A task file is a YAML description of people's data: where they are, and how to read them. A task
folder is the canonical form, which `docs/formats.md` describes for each kind. Nothing is skipped or
repaired: an unusable record is an error that names file and line.
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

from biphasic.config import Config, nearest, parse_config
from biphasic.data.text.near_duplicates import comparable
from biphasic.errors import ConfigError, DataError, reading
from biphasic.files import digest, file_sha256, read_json, write_json
from biphasic.plugins import load_with_plugins
from biphasic.store import complete_folder
from biphasic.tasks.kinds.examples import RecordFiles
from biphasic.tasks.kinds.registry import KINDS, KindName, kinds_with
from biphasic.tasks.kinds.text import named_columns
from biphasic.tasks.labels_and_qrels import write_qrels
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import (
    PAIR_TEMPLATE,
    SPLITS,
    ExampleTask,
    FileSettings,
    Task,
    TaskContent,
    TaskInfo,
    TaskSettings,
)

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
    for example in KINDS[task.info.kind].examples.inputs(task, split):
        text = example if isinstance(example, str) else "\n".join(example)
        yield hashlib.blake2b(comparable(text).encode("utf-8"), digest_size=16).digest()


_OF_FILES = (
    "folder", "train", "validation", "test", "corpus", "queries", "validation_fraction",
    "test_fraction", "limits", "pairs_per_paradigm",
)  # fmt: skip


class DatasetTable(Config):
    """One split of one configuration of a dataset on the hub."""

    dataset: str = Field(pattern=r"^[\w.-]+/[\w.-]+$")
    """`owner/name`."""
    split: str = Field(min_length=1)
    """Its name on the hub."""
    config: str | None = None
    """Configuration; by default the only one."""
    revision: str | None = None
    """Commit, tag or branch; by default the newest."""

    def __str__(self) -> str:
        """Return its name for error messages."""
        return f"{self.dataset} ({', '.join(filter(None, (self.config, self.split)))})"


class HubTables(Config):
    """The tables of a task on the hub."""

    train: DatasetTable | None = None
    """The training split. Without `validation`, 5 % of it are the validation split."""
    pairs: DatasetTable | None = None
    """ir: training pairs, in the columns `query` and `positive`."""
    corpus: DatasetTable | None = None
    """ir, zs: the documents."""
    queries: DatasetTable | None = None
    """ir, zs: the queries; by default, the rows of judgements hold them."""
    validation: DatasetTable | None = None
    """The validation split, or its judgements. For `ir` and `zs`, half of the test queries by
    default."""
    test: DatasetTable
    """The test split, or its judgements. For `mp`, all configurations of the dataset."""
    document_id: str = "_id"
    """ir, zs: column of the documents' ids."""

    @property
    def tables(self) -> tuple[DatasetTable, ...]:
        """The tables to read, in a fixed order."""
        every = (getattr(self, name) for name in type(self).model_fields)
        return tuple(table for table in every if isinstance(table, DatasetTable))


class TaskFile(KindSettings, FileSettings):
    """A task made from the user's files, or from tables of the hub."""

    name: str = ""
    """Name in reports; by default that of the task file or the folder."""
    hub: HubTables | None = None
    """Tables of the hub that hold the task, in place of files."""
    folder: Path | None = None
    """Folder searched for files with the usual names."""
    train: Path | None = None
    """The training split: examples, or for `ir` the judgements."""
    validation: Path | None = None
    """The validation split."""
    test: Path | None = None
    """The test split."""
    corpus: Path | None = None
    """ir, zs: the documents."""
    queries: Path | None = None
    """ir, zs: the queries."""

    @property
    def has_training(self) -> bool:
        """True if the task has a training split of its own."""
        return KINDS[self.kind].facts.is_trained and self.trained_on is None

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        KINDS[self.kind].examples.check_columns(self.columns, KINDS[self.kind].name)
        return self

    @model_validator(mode="after")
    def _check_hub(self) -> Self:
        if self.hub is None:
            return self
        kind = KINDS[self.kind]
        is_retrieval = "ir" in {kind.name, kind.derived_from}
        if not is_retrieval and not isinstance(kind.examples, RecordFiles):
            raise ValueError(f"'hub' is for kinds with an example in each row, not {self.kind}")
        needed = ["corpus"] if is_retrieval else ["train"] * kind.facts.is_trained
        for table in (*needed, *["validation"] * (self.kind == "tc")):
            if getattr(self.hub, table) is None:
                raise ValueError(f"hub.{table}: a task of kind {self.kind} needs it")
        for name in _OF_FILES:
            if getattr(self, name):
                raise ValueError(f"'{name}' is for tasks of files, not of the hub")
        return self

    @model_validator(mode="after")
    def _check_splits(self) -> Self:
        fractions = {"validation": self.validation_fraction, "test": self.test_fraction}
        for split, fraction in fractions.items():
            if fraction is not None and getattr(self, split) is not None:
                raise ValueError(f"give '{split}' or '{split}_fraction', not both")
        if sum(fraction or 0 for fraction in fractions.values()) >= 1:
            raise ValueError("the fractions leave nothing to train on")
        cut = next((f"{split}_fraction" for split, share in fractions.items() if share), None)
        limited = "limits.train" if "train" in self.limits else None
        for name in ("train" if self.train else None, cut, limited):
            if name and not self.has_training:
                raise ValueError(f"'{name}': the task has no training split of its own")
        return self


def load_task_file(path: Path) -> TaskFile:
    """Read a task file; its paths are relative to its folder."""
    file = load_with_plugins(TaskFile, path)
    parse_config(FinetuneProtocol, file.protocol, where=f"{path}: protocol")
    places = {
        key: path.parent / place
        for key in ("folder", "train", "validation", "test", "corpus", "queries")
        if (place := getattr(file, key)) is not None
    }
    file = file.model_copy(update={"name": file.name or path.stem, **places})
    # Report a wrong metric before any data are read.
    describe(file, origin={}, where=str(path))
    return file


def describe(file: TaskFile, *, origin: dict[str, Any], where: str) -> TaskDescription:
    """Return the task description that a task file defines."""
    shared = TaskDescription.model_fields.keys() & file.model_fields_set | {"name"}
    settings = {key: getattr(file, key) for key in shared}
    return parse_config(TaskDescription, {**settings, "origin": origin}, where=where)


def own_files(file: TaskFile, *, where: str) -> dict[str, Path]:
    """Return the files of a task by content; paths of the task file go before those found."""
    kind, files = KINDS[file.kind], {}
    if file.folder:
        if not file.folder.is_dir():
            raise DataError(f"{file.folder}: no such folder")
        files = kind.examples.find_files(file.folder)
    if not file.has_training:
        files.pop("train", None)
    made = [split for split in SPLITS[1:] if getattr(file, f"{split}_fraction")]
    for split in made:  # out of the training split
        if split in files:
            raise DataError(f"{where}: {split}_fraction is set, but {files[split]} exists")
    if file.labels is not None:
        files.pop("labels", None)
    named = {key: getattr(file, key) for key in (*SPLITS, "corpus", "queries")}
    files |= {key: path for key, path in named.items() if path is not None}
    for key in (*kind.examples.needed, *kind.splits(trained_on=file.trained_on)):
        if key not in files and key not in made:
            raise DataError(f"{where}: no {key} {_missing(file, key)}")
    for split in file.limits:
        if split not in files and split not in made:
            raise DataError(f"{where}: 'limits.{split}': the task has no {split} split")
    for key, path in files.items():
        if not path.is_file():
            raise DataError(f"{path}: no such file; {where} names it as {key}")
        kind.examples.check_file(path, key, kind.name)
    return files


def _missing(file: TaskFile, key: str) -> str:
    """Describe the expected name of a missing file, and alternatives."""
    kind = KINDS[file.kind]
    if key not in SPLITS:
        return f"({kind.examples.usual_names(key)})"
    remedy = f"name it in a task file ({key})"
    if key != "train":
        remedy += f", or take it from the training split there ({key}_fraction)"
    else:
        for other in KINDS.values():
            if other.derived_from == kind.name:
                remedy += f", or use kind {other.name}, without training"
    return f"split ({kind.examples.usual_names(key)}); {remedy}"
