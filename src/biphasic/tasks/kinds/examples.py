"""Kinds whose splits are files with an example in each row.

An example is a pydantic record: its fields are the columns of a file, and the aliases of a field
the usual names of its column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
from pydantic import AfterValidator, AliasChoices, AllowInfNan, ConfigDict, Strict, ValidationError
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from biphasic.config import closest, nearest
from biphasic.errors import DataError, reading
from biphasic.rows import Row, plain_name, plain_suffix, rows, text_fault
from biphasic.seeds import permutation, stream
from biphasic.tasks.kinds.kind import Examples, Sample
from biphasic.tasks.labels_and_qrels import Labels, check_labels, read_labels
from biphasic.tasks.records import (
    SPLITS,
    ExampleTask,
    FileSettings,
    HeadRecord,
    TaskContent,
    TaskInfo,
    TaskSettings,
    template_fields,
)

ItemT = TypeVar("ItemT")
LABELS = "labels"  # setting of kinds with named outputs
CLUSTER = "cluster"  # column of what examples share, such as a document
_TRAINING = "the training split"
# Usual names of splits.
SPLIT_NAMES = {"train": "train", "validation": "validation|valid|val|dev", "test": "test"}
FIELDS = ConfigDict(validate_by_name=True, validate_by_alias=True)
"""Configuration of records of examples."""


def _checked_text(value: str) -> str:
    if fault := text_fault(value):
        raise PydanticCustomError("text_fault", "{fault}", {"fault": fault})
    return value


def not_empty(text: str) -> str:
    """Refuse a text without signs: a validator of fields."""
    if not text.strip():
        raise PydanticCustomError("text_fault", "is empty")
    return text


Text = Annotated[str, Strict(), AfterValidator(_checked_text)]
Real = Annotated[float, Strict(), AllowInfNan(False)]


class Parsing(NamedTuple):
    """Where an example comes from: the context of its validators."""

    row: Row
    labels: Sequence[str] = ()
    template: str | None = None


@dataclass(frozen=True, slots=True, config=FIELDS)
class Example:
    """One example of a split. Validators raise a ValueError about a row that is unusable."""

    settings: ClassVar[tuple[str, ...]] = ()  # of task files, that only some kinds have
    suffixes: ClassVar[tuple[str, ...]] = (".jsonl", ".csv", ".tsv")  # of people's files
    inputs: ClassVar[tuple[str, ...]] = ("text",)  # what a model reads of an example
    ready_field: ClassVar[str | None] = None  # column that replaces these in a row that has it
    paired: ClassVar[Collection[str]] = ()  # columns that may be two: a pair of texts
    numbered: ClassVar[Collection[str]] = ()  # columns that may be numbers, without a header
    id: str

    @classmethod
    def columns(cls) -> dict[str, tuple[str, ...]]:
        """The usual names of each column that a file must have; the first is that of folders."""
        return {names[0]: names for names, field in cls._columns() if field.is_required()}

    @classmethod
    def optional(cls) -> tuple[str, ...]:
        """The columns that a file may lack."""
        needed = cls.columns()
        return (*(names[0] for names, _ in cls._columns() if names[0] not in needed), CLUSTER)

    @classmethod
    def _columns(cls) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
        for name, field in cls.__pydantic_fields__.items():  # type: ignore[attr-defined]
            alias = field.validation_alias or name
            names = alias.choices if isinstance(alias, AliasChoices) else [alias]
            if not field.exclude and name != "id":
                yield tuple(map(str, names)), field

    @classmethod
    def of(cls, row: Row, *, labels: Sequence[str] = (), template: str | None = None) -> Self:
        """Return the example in a row; nothing is repaired."""
        where = Parsing(row, labels, template)
        values = cls.given(where)
        values["id"] = row.id()
        try:
            validator = cls.__pydantic_validator__  # type: ignore[attr-defined]
            return validator.validate_python(values, context=where)
        except ValidationError as error:
            raise _fault(row, error) from None

    @classmethod
    def given(cls, where: Parsing) -> dict[str, Any]:
        """Return the values of a row by column, which the fields check."""
        value = where.row.value
        return {name: value[name] for name in known_columns(cls) if name in value}

    @classmethod
    def choose(cls, there: Collection[str], path: Path, file: FileSettings) -> dict[str, str]:
        """Return the column of each field; `there` are those of the file."""
        usual, chosen = cls.columns(), dict[str, str]()
        texts = tuple(name for name in cls.inputs if name in usual)
        groups = [texts, *((name,) for name in usual if name not in texts)]
        for group in filter(None, groups):
            if any(name in file.columns for name in group):
                names = [str(file.columns.get(name, name)) for name in group]
            else:
                options = [*zip(*(usual[name] for name in group), strict=True)]
                names = [*usual_columns(options, there, path=path)]
            chosen |= dict(zip(group, names, strict=True))
        return chosen

    @classmethod
    def written(cls, row: Row, labels: Labels | None) -> dict[str, Any]:
        """Return fields of a row of people's files that are written differently in a folder."""
        numbers = (row.written_number(name) for name in _numbers(cls) if name in row.value)
        return {name: number for written in numbers for name, number in written.items()}

    @classmethod
    def labels_in(cls, rows: Sequence[Row], *, source: str) -> Labels:
        """Return the labels of a training split; for records with the setting `labels`."""
        raise NotImplementedError

    @classmethod
    def check_labels(cls, labels: Sequence[str], *, where: str) -> None:
        """Check the names of outputs."""
        check_labels(labels, where=where)

    @classmethod
    def check_split(cls, split: str, examples: Sequence[Any], *, where: str) -> None:
        """Check that a split as a whole can be learned from, or scored."""

    @classmethod
    def check_splits(cls, splits: Mapping[str, Sequence[Row]]) -> None:
        """Check that splits fit together: each file's columns are chosen alone."""

    @classmethod
    def details(cls, first: Row, description: TaskSettings) -> dict[str, Any]:
        """Return further fields of a task, whose first row is given."""
        return {}

    @classmethod
    def reader(cls, file: FileSettings) -> Callable[[Path], Iterable[Row]]:
        """Return the reader of a file with one of the suffixes, except `.jsonl`."""
        return rows

    @classmethod
    def asked(cls, row: Row, record: HeadRecord) -> Any:
        """Return what a fine-tuned model reads of a row without an answer."""
        raise NotImplementedError


@cache  # asked for each row
def known_columns(record: type[Example]) -> tuple[str, ...]:
    """Return the columns that a file must or may have."""
    return (*record.columns(), *record.optional())


@cache
def _numbers(record: type[Example]) -> tuple[str, ...]:
    return tuple(names[0] for names, field in record._columns() if field.annotation is float)


def _fault(row: Row, error: ValidationError) -> DataError:
    """Return the first fault of a row as an error with its place."""
    issue = error.errors(include_url=False)[0]
    key, value, kind = (*issue["loc"], "")[0], issue["input"], issue["type"]
    if kind == "missing":
        return row.lacks(str(key))
    if kind in {"string_type", "float_type", "finite_number"}:
        needed = "a text" if kind == "string_type" else "a finite number"
        return row.error(f"'{key}' must be {needed}, not {value!r:.60}")
    if kind == "value_error":
        return row.error(str(issue.get("ctx", {}).get("error")))
    return row.error(f"'{key}'{' ' if kind == 'text_fault' else ': '}{issue['msg']}")


class RecordFiles(Examples):
    """Files of records: `SPLIT.jsonl`, and `labels.json` if outputs have names."""

    optional_files = ("validation.jsonl",)

    def __init__(self, record: type[Example]) -> None:
        self.record, self.settings = record, record.settings
        self.fields, self.ready_field = record.inputs, record.ready_field
        self.has_labels = LABELS in record.settings

    def check_columns(self, columns: Mapping[str, Any], kind: str) -> None:
        known = ("id", *self.record.columns(), *self.record.optional())
        for name, column in columns.items():
            if name not in known:
                raise ValueError(
                    f"columns.{name}: a task of kind {kind} has no such column"
                    f"{nearest(name, known)}"
                )
            if isinstance(column, int) and name not in self.record.numbered:
                raise ValueError(f"columns.{name}: expected the name of a column, not {column}")
            if isinstance(column, tuple) and name not in self.record.paired:
                raise ValueError(f"columns.{name}: expected one column, not two")
            if isinstance(column, tuple) and column[0] == column[1]:
                raise ValueError(f"columns.{name}: a pair needs two different columns")

    def example(self, row: Row, record: HeadRecord) -> Any:
        return self.record.asked(row, record)

    def file_names(self, splits: Sequence[str]) -> list[str]:
        return [*(f"{split}.jsonl" for split in splits), *["labels.json"] * self.has_labels]

    def read(
        self, folder: Path, description: TaskSettings, info: TaskInfo, files: Sequence[str]
    ) -> ExampleTask:
        labels = read_labels(folder / "labels.json") if self.has_labels else ()
        if self.has_labels:
            self.record.check_labels(labels, where=str(folder / "labels.json"))
        paths = {split: folder / f"{split}.jsonl" for split in SPLITS if f"{split}.jsonl" in files}
        splits, clusters = {}, {}
        for split, path in paths.items():
            splits[split], clusters[split] = self._unique(
                rows(path), labels, description.template, where=str(path)
            )
        for split, examples in splits.items():
            self.record.check_split(split, examples, where=str(paths[split]))
        details = self.record.details(next(rows(next(iter(paths.values())))), description)
        return ExampleTask(
            replace(
                info,
                clusters={s: groups for s, groups in clusters.items() if groups and s != "train"},
                has_pairs=details.pop("has_pairs", False),
            ),
            splits,
            labels,
            **details,
        )

    def _unique(
        self, rows: Iterable[Row], labels: Sequence[str], template: str | None, *, where: str
    ) -> tuple[tuple[Any, ...], dict[str, str]]:
        """Parse the rows of one split, and their clusters; no id may occur twice."""
        examples, clusters = dict[str, Any](), dict[str, str]()
        is_text = template is not None and CLUSTER in template_fields(template)
        for row in rows:
            example = self.record.of(row, labels=labels, template=template)
            if example.id in examples:
                raise row.error(f"the id '{example.id}' is repeated")
            examples[example.id] = example
            if row.value.get(CLUSTER, "") != "" and not is_text:
                clusters[example.id] = row.id(CLUSTER)
            if len(clusters) not in {0, len(examples)}:
                raise row.error(f"rows with and without a '{CLUSTER}'; give every row one, or none")
        if not examples:
            raise DataError(f"{where}: the split is empty")
        return tuple(examples.values()), clusters

    def inputs(self, task: ExampleTask, split: str) -> Iterator[Sample]:
        yield from map(attrgetter(*self.fields), task.splits.get(split, ()))

    def find_files(self, folder: Path) -> dict[str, Path]:
        files, ends = {}, "|".join(map(re.escape, self.record.suffixes))
        for split, names in SPLIT_NAMES.items():
            # SQuAD's file names include the version, those of Universal Dependencies the treebank.
            pattern = rf"(.+-ud-)?({names})(-v\d+\.\d+)?({ends})(\.gz|\.zst)?"
            paths = [path for path in sorted(folder.iterdir()) if re.fullmatch(pattern, path.name)]
            if path := only_path(paths):
                files[split] = path
        if self.has_labels and (folder / "labels.json").is_file():
            files["labels"] = folder / "labels.json"
        return files

    def usual_names(self, content: str) -> str:
        return f"{SPLIT_NAMES[content].replace('|', ', ')} with {', '.join(self.record.suffixes)}"

    def check_file(self, path: Path, content: str, kind: str) -> None:
        if content in SPLITS and plain_suffix(path) not in self.record.suffixes:
            known = ", ".join(self.record.suffixes)
            raise DataError(
                f"{path}: a file of kind {kind} ends in {known} (.gz or .zst may follow)"
            )

    def read_files(
        self, file: FileSettings, files: Mapping[str, Path], *, where: str
    ) -> tuple[TaskContent, dict[str, int]]:
        paths = {split: files[split] for split in SPLITS if split in files}
        rows = {split: self._read_rows(path, file) for split, path in paths.items()}
        for split, path in paths.items():
            if not rows[split]:
                raise DataError(f"{path}: the {split} split is empty")
        self.record.check_splits(rows)
        labels = self._labels(file, files, rows.get("train", ())) if self.has_labels else None
        return self.content(file, rows, labels, where=where)

    def content(
        self,
        file: FileSettings,
        rows: Mapping[str, Sequence[Row]],
        labels: Labels | None,
        *,
        where: str,
    ) -> tuple[TaskContent, dict[str, int]]:
        """Return a task of rows by split, and the number of its examples, which are checked."""
        names = labels.names if labels else ()
        parsed: dict[str, list[tuple[Row, Any]]] = {}
        for split, part in rows.items():
            path = str(part[0].path)
            written = [
                row.with_value({**row.value, "id": row.id(), **self.record.written(row, labels)})
                for row in part
            ]
            examples, _ = self._unique(written, names, file.template, where=path)
            parsed[split] = [*zip(written, examples, strict=True)]
        cut = cut_splits(parsed, file, where=where)
        for split, part in cut.items():
            examples = [example for _, example in part]
            self.record.check_split(split, examples, where=str(part[0][0].path))
        splits = {split: [row.value for row, _ in part] for split, part in cut.items()}
        counts = {split: len(part) for split, part in cut.items()}
        return TaskContent(splits=splits, labels=names), counts

    def _read_rows(self, path: Path, file: FileSettings) -> list[Row]:
        """Return the rows of one file with canonical field names."""
        reader = rows if plain_suffix(path) == ".jsonl" else self.record.reader(file)
        with reading(path, DataError):
            examples = list(reader(path))
        if reader is rows:
            return self._renamed(examples, path, file)
        for name, column in sorted(file.columns.items()):
            if not isinstance(column, int):
                raise DataError(
                    f"{path}: its columns have no names, so 'columns.{name}' matches none"
                )
        return examples

    def _renamed(self, rows: Sequence[Row], path: Path, file: FileSettings) -> list[Row]:
        """Return rows with fields named as in docs/formats.md; the first row decides."""
        if not rows:
            return []
        there = rows[0].value.keys()
        chosen = self.record.choose(there, path, file)
        for name in ("id", *self.record.optional()):
            if name in file.columns or (name in there and name not in chosen.values()):
                chosen[name] = str(file.columns.get(name, name))
            # Such a column would be lost in silence, as the first row decides which there are.
            late = next((row for row in rows if name in row.value and name not in there), None)
            if late and name not in chosen:
                raise late.error(
                    f"has the field '{name}', but the first row has none; give every row one, or "
                    "no row"
                )
        for column in chosen.values():
            if column not in there:
                raise DataError(
                    f"{path}:1: no column '{column}'{closest(column, there)}; {_available(there)}"
                )
        for row in rows:
            if lacking := next((name for name in chosen.values() if name not in row.value), None):
                raise row.lacks(lacking)
        named = ({name: row.value[column] for name, column in chosen.items()} for row in rows)
        return [row.with_value(value) for row, value in zip(rows, named, strict=True)]

    def _labels(self, file: FileSettings, files: Mapping[str, Path], rows: Sequence[Row]) -> Labels:
        if file.labels is not None:
            names = tuple(plain_name(str(label)) for label in file.labels)
            labels = Labels(names, "the task file")
        elif "labels" in files:
            path = files["labels"]
            labels = Labels(read_labels(path), path.name, is_numbered=True)
        else:
            labels = self.record.labels_in(rows, source=_TRAINING)
        self.record.check_labels(labels.names, where=labels.source)
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
        raise DataError(f"{path}:1: no column of the usual names ({usual}); {_available(there)}")
    fitting = " or ".join(" and ".join(names) for names in complete)
    raise DataError(f"{path}:1: columns {fitting} all match; choose in a task file (columns)")


def _available(there: Collection[str]) -> str:
    """Describe the columns of a file, and how to choose among them."""
    return f"there are {', '.join(map(repr, there))}; name columns in a task file (columns)"


def only_path(paths: list[Path]) -> Path | None:
    """Return the only path, or None if there is none."""
    if len(paths) > 1:
        names = " or ".join(path.name for path in paths)
        raise DataError(f"{paths[0].parent}: several files match ({names}); set one in a task file")
    return paths[0] if paths else None


def cut_splits(
    splits: Mapping[str, Sequence[ItemT]], file: FileSettings, *, where: str
) -> dict[str, list[ItemT]]:
    """Take splits out of the training split, then keep as many examples of each as allowed."""
    # Both choices depend only on the seed and the number of examples, whose order does not change.
    cut = {split: list(items) for split, items in splits.items()}
    shares = {"test": file.test_fraction, "validation": file.validation_fraction}
    fractions = {split: share for split, share in shares.items() if share}
    if fractions:
        whole = cut.pop("train")
        order = permutation(stream("task-split", file.seed), len(whole))
        start = 0
        for split, fraction in fractions.items():
            end = start + round(fraction * len(whole))
            # In the order of the file, so that a split can be compared with it.
            cut[split] = [whole[index] for index in np.sort(order[start:end])]
            start = end
        cut["train"] = [whole[index] for index in np.sort(order[start:])]
    for split, items in cut.items():
        if not items:
            raise DataError(f"{where}: the fractions leave no example for {split}")
    for split, limit in file.limits.items():
        items = cut.get(split, [])
        if len(items) > limit:
            order = permutation(stream(f"task-limit-{split}", file.seed), len(items))
            cut[split] = [items[index] for index in np.sort(order[:limit])]
    return cut
