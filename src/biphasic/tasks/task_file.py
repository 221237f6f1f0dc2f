"""The task file: a YAML description of the user's data, where they are and how to read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from biphasic.config import Config, parse_config
from biphasic.errors import DataError
from biphasic.plugins import load_pinned
from biphasic.tasks.folder import KindSettings, TaskDescription
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS
from biphasic.tasks.settings import FileSettings

HUB_KINDS = ("sc", "tc", "qa", "ir", "zs", "mp")
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
    """Tables of the hub that hold the task, in place of files; for sc, tc, qa, ir, zs and mp."""
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
        """Whether the task has a training split of its own."""
        return KINDS[self.kind].facts.is_trained and self.trained_on is None

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        KINDS[self.kind].examples.check_columns(self.columns, KINDS[self.kind].name)
        return self

    @model_validator(mode="after")
    def _check_hub(self) -> Self:
        if self.hub is None:
            return self
        if self.kind not in HUB_KINDS:
            known = ", ".join(HUB_KINDS)
            raise ValueError(f"'hub' is for tasks of kind {known}, not {self.kind}")
        needed = {"sc": ("train",), "tc": ("train", "validation"), "qa": ("train",)}
        needed |= dict.fromkeys(("ir", "zs"), ("corpus",))
        for table in needed.get(self.kind, ()):
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
    file = load_pinned(TaskFile, path)
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
    made = _made(file)
    for split in made:
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


def _made(file: TaskFile) -> list[str]:
    """Return the splits that are taken out of the training split."""
    return [split for split in SPLITS[1:] if getattr(file, f"{split}_fraction")]


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
