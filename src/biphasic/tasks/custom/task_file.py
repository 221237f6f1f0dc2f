"""The task file: a YAML description of the user's data and how to read them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, StrictInt, model_validator

from biphasic.config import Config, load_config, parse_config
from biphasic.tasks.formats.folder import RETRIEVAL_KINDS, TaskDescription, check_kind_settings
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import LABEL_KINDS, Kind

Fraction = Annotated[float, Field(gt=0, lt=1)]


COLUMNS_BY_KIND: dict[str, set[str]] = {
    "sc": {"id", "text", "label"},
    "ml": {"id", "text", "labels"},
    "sr": {"id", "text", "value"},
    "tc": {"id", "tokens", "tags"},
    "qa": {"id", "question", "context", "answers"},
}

Column = Annotated[str, Field(min_length=1)]


class Columns(Config):
    """Column names, where they differ from the usual ones."""

    id: Column | None = Field(default=None, description="By default `id`, else the line number.")
    text: Column | tuple[Column, Column] | None = Field(
        default=None, description="sc, ml, sr: one name, or two for pairs."
    )
    label: Column | None = Field(default=None, description="sc.")
    labels: Column | None = Field(default=None, description="ml: all labels of a text.")
    value: Column | None = Field(default=None, description="sr: the number to predict.")
    tokens: Column | PositiveInt | None = Field(
        default=None, description="tc: in CoNLL files the number of the column, from 1."
    )
    tags: Column | PositiveInt | None = Field(default=None, description="tc: likewise.")
    question: Column | None = Field(default=None, description="qa.")
    context: Column | None = Field(default=None, description="qa.")
    answers: Column | None = Field(default=None, description="qa.")

    @model_validator(mode="after")
    def _different(self) -> Columns:
        if isinstance(self.text, tuple) and self.text[0] == self.text[1]:
            raise ValueError("text: a pair needs two different columns")
        return self

    def check_kind(self, kind: Kind) -> None:
        """Check that only columns of this kind of task are set.

        Raises:
            ValueError: Another kind's column is set.
        """
        for name in self.model_fields_set - COLUMNS_BY_KIND.get(kind, set()):
            raise ValueError(f"columns.{name}: a task of kind {kind} has no such column")


class TaskFile(Config):
    """A task made from the user's files."""

    kind: Kind
    """Kind of task."""
    name: str = ""
    """Name in reports; by default that of the task file or the folder."""
    title: str = ""
    """Longer name."""
    metric: str = ""
    """The primary metric; by default the kind's first."""
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
    validation_fraction: Fraction | None = None
    """Share of the training split that becomes the validation split."""
    test_fraction: Fraction | None = None
    """Share of the training split that becomes the test split."""
    seed: NonNegativeInt = 0
    """Seed of the splits and of `limits`."""
    limits: dict[Literal["train", "validation", "test"], PositiveInt] = Field(default_factory=dict)
    """Maximum examples per split, chosen at random."""
    columns: Columns = Columns()
    """Column names, where they differ from the usual ones."""
    labels: tuple[str | StrictInt, ...] | None = None
    """sc, ml, tc: names of the labels in order; by default those of the training split, sorted."""
    template: str | None = None
    """sc, ml, sr: joins the columns of an example into one text."""
    query_template: str | None = None
    """ir, zs: template of a query."""
    document_template: str | None = None
    """ir, zs: template of a document."""
    trained_on: str | None = None
    """ir: the task whose training split replaces this task's own."""
    protocol: dict[str, Any] = Field(default_factory=dict)
    """Fine-tuning settings that this task needs."""
    license: str = ""
    """License of the data."""

    @model_validator(mode="after")
    def _consistent(self) -> TaskFile:
        check_kind_settings(self)
        self.columns.check_kind(self.kind)
        if self.labels is not None and self.kind not in LABEL_KINDS:
            known = " or ".join(LABEL_KINDS)
            raise ValueError(f"'labels' is for tasks of kind {known}, not {self.kind}")
        if (self.corpus or self.queries) and self.kind not in RETRIEVAL_KINDS:
            raise ValueError(f"'corpus' and 'queries' are for retrieval, not for {self.kind}")
        self._check_splits()
        return self

    def _check_splits(self) -> None:
        fractions = {"validation": self.validation_fraction, "test": self.test_fraction}
        for split, fraction in fractions.items():
            if fraction is not None and getattr(self, split) is not None:
                raise ValueError(f"give '{split}' or '{split}_fraction', not both")
        if sum(fraction or 0 for fraction in fractions.values()) >= 1:
            raise ValueError("the fractions leave nothing to train on")
        cut = next((f"{split}_fraction" for split, share in fractions.items() if share), None)
        limited = "limits.train" if "train" in self.limits else None
        for name in ("train" if self.train else None, cut, limited):
            if name and (self.kind == "zs" or self.trained_on):
                raise ValueError(f"'{name}': the task has no training split of its own")


def load_task_file(path: Path) -> TaskFile:
    """Read a task file; its paths are relative to its folder.

    Raises:
        ConfigError: A key is unknown, or a value is wrong.
    """
    file = load_config(TaskFile, path)
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
    """Return the task description that a task file defines.

    Raises:
        ConfigError: The kind has no such metric.
    """
    shared = TaskDescription.model_fields.keys() & file.model_fields_set | {"name"}
    settings = {key: getattr(file, key) for key in shared}
    return parse_config(TaskDescription, {**settings, "origin": origin}, where=where)
