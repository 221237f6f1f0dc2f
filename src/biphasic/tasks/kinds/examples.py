"""Kinds whose splits are files with an example in each line."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from biphasic.errors import DataError, reading
from biphasic.rows import Row, plain_name, plain_suffix, rows
from biphasic.tasks.kinds.kind import Sample, TaskKind
from biphasic.tasks.records import SPLITS, ExampleTask, TaskInfo
from biphasic.tasks.rows.content import TaskContent
from biphasic.tasks.rows.labels import Labels, check_labels, read_labels
from biphasic.tasks.rows.splits import SPLIT_NAMES, cut_splits, find_splits
from biphasic.tasks.rows.templates import template_fields

if TYPE_CHECKING:
    from biphasic.tasks.folder import TaskDescription
    from biphasic.tasks.task_file import TaskFile

LABELS = "labels"  # setting of kinds with named outputs
CLUSTER = "cluster"  # column of what examples share, such as a document
_TRAINING = "the training split"


class ExampleKind(TaskKind):
    """A kind with files of examples: `SPLIT.jsonl`, and `labels.json` if its outputs have names."""

    optional_files = ("validation.jsonl",)
    optional_columns = (CLUSTER,)
    suffixes: ClassVar[tuple[str, ...]] = (".jsonl", ".csv", ".tsv")  # of the user's files

    @abstractmethod
    def parse(self, row: Row, *, labels: Sequence[str], template: str | None) -> Any:
        """Return the example in a row; it has an `id`.

        Raises:
            DataError: The row is unusable; nothing is repaired.
        """

    def check_train(self, examples: Sequence[Any], *, where: str) -> None:
        """Check a training split as a whole.

        Raises:
            DataError: There is nothing to learn.
        """

    def check_labels(self, labels: Sequence[str], *, where: str) -> None:
        """Check the names of outputs.

        Raises:
            DataError: They are unusable.
        """
        check_labels(labels, where=where)

    def found_labels(self, rows: Sequence[Row], *, source: str) -> Labels:
        """Return the labels of a training split; for kinds with the setting `labels`."""
        raise NotImplementedError

    def canonical(self, row: Row, labels: Labels | None) -> dict[str, Any]:
        """Return fields of a row of the user's file that are written differently in a folder."""
        return {}

    def reader(self, path: Path, file: TaskFile) -> Callable[[Path], Any]:
        """Return the reader of a file with one of the suffixes, except `.jsonl`."""
        return rows

    def choose_columns(self, there: Collection[str], path: Path, file: TaskFile) -> dict[str, str]:
        """Return the column of each field; `there` are those of the file."""
        names = sorted({*self.columns} - {"id"})
        return {name: str(file.columns.get(name) or name) for name in names}

    @property
    def has_labels(self) -> bool:
        """Whether its outputs have names."""
        return LABELS in self.settings

    def file_names(self, *, trained_on: str | None) -> list[str]:
        """Return a file for each split, and that of the labels."""
        names = [f"{split}.jsonl" for split in self.splits(trained_on=trained_on)]
        return [*names, "labels.json"] if self.has_labels else names

    def read(
        self, folder: Path, description: TaskDescription, info: TaskInfo, files: Collection[str]
    ) -> ExampleTask:
        """Read the examples of a task folder."""
        labels = read_labels(folder / "labels.json") if self.has_labels else ()
        if self.has_labels:
            self.check_labels(labels, where=str(folder / "labels.json"))
        clusters: dict[str, dict[str, str]] = {}
        splits = {
            split: self._unique(
                rows(folder / f"{split}.jsonl"),
                labels=labels,
                template=description.template,
                where=str(folder / f"{split}.jsonl"),
                clusters=clusters.setdefault(split, {}),
            )
            for split in SPLITS
            if f"{split}.jsonl" in files
        }
        if named := {split: of for split, of in clusters.items() if of and split != "train"}:
            info = replace(info, clusters=named)
        if train := splits.get("train"):
            where = str(folder / "train.jsonl")
            self.check_train(train, where=where)
        return ExampleTask(info, splits, labels)

    def _unique(
        self,
        rows: Iterable[Row],
        *,
        labels: Sequence[str],
        template: str | None,
        where: str,
        clusters: dict[str, str],
    ) -> tuple[Any, ...]:
        """Parse the rows of one split, and their clusters; no id may occur twice."""
        examples: dict[str, Any] = {}
        is_text = template is not None and CLUSTER in template_fields(template)
        for row in rows:
            example = self.parse(row, labels=labels, template=template)
            if example.id in examples:
                raise row.error(f"the id '{example.id}' is repeated")
            examples[example.id] = example
            if row.value.get(CLUSTER, "") != "" and not is_text:
                clusters[example.id] = row.id(CLUSTER)
            if len(clusters) not in {0, len(examples)}:
                raise row.error(f"rows with and without a '{CLUSTER}'; give every row one, or none")
        if not examples:
            raise DataError(f"{where}: the split is empty")
        return tuple(examples.values())

    def inputs(self, task: ExampleTask, split: str) -> Iterator[Sample]:
        """Yield what a model reads of each example of a split."""
        yield from map(attrgetter(*self.input_fields), task.splits.get(split, ()))

    def find_files(self, folder: Path) -> dict[str, Path]:
        """Return the files of splits, and that of the labels."""
        files = find_splits(folder, self.suffixes)
        if self.has_labels and (folder / "labels.json").is_file():
            files["labels"] = folder / "labels.json"
        return files

    def usual_names(self, content: str) -> str:
        """Describe the usual file names of a split."""
        return f"{SPLIT_NAMES[content].replace('|', ', ')} with {', '.join(self.suffixes)}"

    def check_file(self, path: Path, content: str) -> None:
        """Check the suffix of a split."""
        if content in SPLITS and plain_suffix(path) not in self.suffixes:
            known = ", ".join(self.suffixes)
            raise DataError(
                f"{path}: a file of kind {self.name} ends in {known} (.gz or .zst may follow)"
            )

    def read_files(
        self, file: TaskFile, files: Mapping[str, Path], *, where: str
    ) -> tuple[TaskContent, dict[str, int]]:
        """Read the user's files of splits."""
        paths = {split: files[split] for split in SPLITS if split in files}
        rows = {split: self._read_rows(path, file) for split, path in paths.items()}
        for split, path in paths.items():
            if not rows[split]:
                raise DataError(f"{path}: the {split} split is empty")
        self.check_same_fields(rows)
        labels = self._labels(file, files, rows.get("train", ())) if self.has_labels else None
        names = labels.names if labels else ()
        for split, path in paths.items():
            rows[split] = [
                replace(row, value={**row.value, "id": row.id(), **self.canonical(row, labels)})
                for row in rows[split]
            ]
            self._unique(
                rows[split], labels=names, template=file.template, where=str(path), clusters={}
            )
        cut = cut_splits(rows, file, where=where)
        if train := cut.get("train"):
            where = str(paths["train"])
            parsed = [self.parse(row, labels=names, template=file.template) for row in train]
            self.check_train(parsed, where=where)
        splits = {split: [row.value for row in kept] for split, kept in cut.items()}
        counts = {split: len(kept) for split, kept in cut.items()}
        return TaskContent(splits=splits, labels=names), counts

    def check_same_fields(self, splits: Mapping[str, Sequence[Row]]) -> None:
        """Check that all splits have the same fields: each file's columns are chosen alone.

        Raises:
            DataError: They do not.
        """

    def _read_rows(self, path: Path, file: TaskFile) -> list[Row]:
        """Return the rows of one file with canonical field names."""
        reader = rows if plain_suffix(path) == ".jsonl" else self.reader(path, file)
        with reading(path, DataError):
            examples = list(reader(path))
        if reader is rows:
            return self._renamed_rows(examples, path, file)
        for name, column in sorted(file.columns.items()):
            if not isinstance(column, int):
                raise DataError(
                    f"{path}: its columns have no names, so 'columns.{name}' matches none"
                )
        return examples

    def _renamed_rows(self, rows: Sequence[Row], path: Path, file: TaskFile) -> list[Row]:
        """Return rows with fields named as in docs/formats.md; the first row decides."""
        if not rows:
            return []
        there = rows[0].value.keys()
        chosen = self.choose_columns(there, path, file)
        for name in ("id", *self.optional_columns):
            if name in file.columns or (name in there and name not in chosen.values()):
                chosen[name] = str(file.columns.get(name, name))
            late = next((row for row in rows if name in row.value and name not in there), None)
            if late and name not in chosen:
                raise late.error(
                    f"has the field '{name}', but the first row has none; give every row one, or "
                    "no row"
                )
        for column in chosen.values():
            if column not in there:
                raise DataError(f"{path}:1: no column '{column}'; {available(there)}")
        return [self.renamed(row, chosen) for row in rows]

    def renamed(self, row: Row, chosen: Mapping[str, str]) -> Row:
        """Return a row with its fields under their own names."""
        for column in chosen.values():
            if column not in row.value:
                raise row.lacks(column)
        return replace(row, value={name: row.value[column] for name, column in chosen.items()})

    def _labels(self, file: TaskFile, files: Mapping[str, Path], rows: Sequence[Row]) -> Labels:
        if file.labels is not None:
            names = tuple(plain_name(str(label)) for label in file.labels)
            labels = Labels(names, "the task file")
        elif "labels" in files:
            path = files["labels"]
            labels = Labels(read_labels(path), path.name, is_numbered=True)
        else:
            labels = self.found_labels(rows, source=_TRAINING)
        self.check_labels(labels.names, where=labels.source)
        return labels


def usual_columns(
    options: Sequence[tuple[str, ...]], there: Collection[str], *, path: Path
) -> tuple[str, ...]:
    """Return the only option, or else the only one whose columns all exist."""
    complete = [names for names in options if all(name in there for name in names)]
    if len(options) == 1 or len(complete) == 1:
        return (complete or options)[0]
    if not complete:
        usual = ", ".join(" and ".join(names) for names in options)
        raise DataError(f"{path}:1: no column of the usual names ({usual}); {available(there)}")
    fitting = " or ".join(" and ".join(names) for names in complete)
    raise DataError(f"{path}:1: columns {fitting} all match; choose in a task file (columns)")


def available(there: Collection[str]) -> str:
    """Describe the columns of a file, and how to choose among them."""
    return f"there are {', '.join(map(repr, there))}; name columns in a task file (columns)"
