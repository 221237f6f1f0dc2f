"""Tasks of tables on the hub: the study's twelve datasets, BLiMP, and those of people's task files.

`docs/protocol.md` describes each published dataset, and where this differs from the study.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from biphasic.config import nearest
from biphasic.data.text.hub_tables import HubSplit, HubTable
from biphasic.errors import DataError
from biphasic.rows import Row, plain_name
from biphasic.tasks.folder import (
    DatasetTable,
    HubTables,
    TaskFile,
    describe,
    load_task_file,
    write_task_folder,
)
from biphasic.tasks.hub_retrieval import SPLIT_SEED, Opener, dataset_of, read_retrieval, select
from biphasic.tasks.kinds.registry import KINDS, name_in_kind
from biphasic.tasks.labels_and_qrels import Labels
from biphasic.tasks.records import SPLITS, TaskContent

# Increase by hand when the same tables give a different task: of a published dataset, or of
# people's task files.
_PUBLISHED_VERSION = 1
_OWN_VERSION = 2
_LABELLED = ("label", "labels", "tags")  # columns that may have numbers of labels
_OF_QUESTIONS = ("entity_spans",)  # column of questions beside those of files
_TRAIN_SHARE = 0.95
_FILES = {path.stem: path for path in sorted(Path(__file__).with_name("datasets").glob("*.yaml"))}


class _Published(Mapping[str, TaskFile]):
    """Task files by name, read when they are asked for."""

    def __getitem__(self, name: str) -> TaskFile:
        return _load(_FILES[name])

    def __iter__(self) -> Iterator[str]:
        return iter(_FILES)

    def __len__(self) -> int:
        return len(_FILES)


@cache
def _load(path: Path) -> TaskFile:
    return load_task_file(path)


PUBLISHED = _Published()


def published_text(name: str) -> str:
    """Return the task file of a published dataset."""
    if name not in PUBLISHED:
        raise DataError(f"no published dataset '{name}'{nearest(name, PUBLISHED)}")
    return _FILES[name].read_text("utf-8")


@dataclass(frozen=True)
class HubSource:
    """A task of tables on the hub, or of local copies of them."""

    file: TaskFile
    copies: Path | None = None
    revision: str | None = None  # of its repository, or `owner/name=revision,...` for several
    paper: bool = False  # whether it is read as in the reference study, mistakes included
    published: str = ""  # its name, if it is a published dataset

    @classmethod
    def of_published(cls, name: str, kind: str | None = None, **settings: Any) -> HubSource:
        """Return a published dataset; in a derived kind without training pairs and prompts."""
        if name not in PUBLISHED:
            raise DataError(f"no published dataset '{name}'{nearest(name, PUBLISHED)}")
        file = PUBLISHED[name]
        # Of the others the reference study reads the tables as we do.
        is_retrieval = file.hub is not None and file.hub.corpus is not None
        paper = settings.pop("paper", False) and is_retrieval
        if kind is not None:
            if KINDS[kind].derived_from != file.kind:
                raise DataError(
                    f"'{name}' is of kind {file.kind}, so it cannot be read as kind {kind}"
                )
            changes = {
                "name": name_in_kind(name, kind),
                "title": f"{file.title}, {KINDS[kind].facts.title}",
                "kind": kind,
                "hub": file.hub and file.hub.model_copy(update={"pairs": None}),
            }
            own = file.model_fields_set - {"trained_on", "query_template", "document_template"}
            file = TaskFile.model_construct(own, **{**dict(file), **changes})
        return cls(file, published=name, paper=paper, **settings)

    @property
    def hub(self) -> HubTables:
        """The tables."""
        if self.file.hub is None:
            raise DataError(f"task '{self.file.name}': no tables on the hub (hub)")
        return self.file.hub

    @cached_property
    def tables(self) -> dict[str, Any]:
        """The tables that are read, and the commits of their datasets: one for each dataset."""
        datasets = {
            dataset: HubSplit(dataset, revision=self.revisions.get(dataset)).fingerprint(
                self.copies
            )
            for dataset in dict.fromkeys(table.dataset for table in self.hub.tables)
        }
        return {
            "version": _PUBLISHED_VERSION if self.published else _OWN_VERSION,
            "tables": [
                {**datasets[table.dataset], "config": table.config, "split": table.split}
                for table in self.hub.tables
            ],
        }

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of people's task file, which they may edit."""
        return self.file.model_dump(mode="json", exclude_defaults=True)

    @property
    def determinants(self) -> dict[str, Any]:
        """Everything that determines the task, without reading it."""
        if not self.published:
            return {"source": "hub", "settings": self.settings, "origin": self.tables}
        about = {"published": self.published, "kind": self.file.kind, "paper": self.paper}
        return {"source": "published", "origin": {**about, **self.tables}}

    @cached_property
    def revisions(self) -> dict[str, str]:
        """Commits, tags or branches by dataset."""
        name, revision, tables = self.file.name, self.revision, self.hub.tables
        if revision is None:
            return {table.dataset: table.revision for table in tables if table.revision}
        known = [*dict.fromkeys(table.dataset for table in tables)]
        if "=" not in revision:
            if len(known) == 1:
                return {known[0]: revision}
            raise DataError(
                f"{name}: '{revision}' could mean any of {', '.join(known)}; "
                f"write owner/name=revision,owner/name=revision"
            )
        revisions: dict[str, str] = {}
        for part in revision.split(","):
            repository, _, value = (text.strip() for text in part.partition("="))
            if not value:
                raise DataError(f"{name}: '{part.strip()}': write owner/name=revision")
            if repository not in known:
                raise DataError(f"{name}: does not read '{repository}'{nearest(repository, known)}")
            revisions[repository] = value
        return revisions

    def write(self, folder: Path) -> None:
        """Write it as a canonical task folder, at the commits that `determinants` name."""
        # Local copies have no commits.
        read = self.tables["tables"]
        commits = {table["dataset"]: table["revision"] for table in read if table["revision"]}
        opener = Opener(copies=self.copies, revisions=commits or self.revisions)
        if self.published:
            origin = {"published": self.published, "paper": self.paper}
        else:
            origin = {"source": "hub", "settings": self.settings}
        if self.hub.corpus is not None:
            more, content = read_retrieval(self.file, self.hub, opener, paper=self.paper)
        else:
            more, content = _read_examples(self.file, self.hub, opener)
        described = {**origin, "tables": opener.origins, **more}
        write_task_folder(
            folder, describe(self.file, origin=described, where=self.file.name), content
        )


def _read_examples(
    file: TaskFile, hub: HubTables, opener: Opener
) -> tuple[dict[str, Any], TaskContent]:
    """Read the tables of splits; without one of validation, cut it off the training split."""
    examples: Any = KINDS[file.kind].examples
    if file.kind == "mp":
        pairs = list(_pair_rows(file, hub.test, opener))
        return {}, examples.content(file, {"test": pairs}, None, where=f"task '{file.name}'")[0]
    tables = {split: table for split in SPLITS if (table := getattr(hub, split))}
    parts: dict[str, tuple[DatasetTable, HubTable, Iterable[int]]] = {
        split: (table, opener.open(table, texts=_named_columns(file)), itertools.count())
        for split, table in tables.items()
    }
    if "train" in parts and "validation" not in parts:
        table, opened, _ = parts.pop("train")
        cut = halves(table, len(dataset_of(opened)))
        parts |= {
            split: (table, select(opened, numbers), numbers) for split, numbers in cut.items()
        }
    labels = _labels(file) if examples.has_labels else None
    rows = {split: list(_rows(file, *parts[split], labels)) for split in SPLITS if split in parts}
    begun = {split: sum(map(_begin_entities, part)) for split, part in rows.items()}
    content, _ = examples.content(file, rows, labels, where=f"task '{file.name}'")
    return {"tags_rewritten_as_b": begun} if file.kind == "tc" else {}, content


def _labels(file: TaskFile) -> Labels:
    if file.labels is None:
        raise DataError(f"task '{file.name}': name its labels (labels), in their order")
    return Labels(tuple(plain_name(str(label)) for label in file.labels), "the task file")


def _named_columns(file: TaskFile) -> list[str]:
    """Return the columns that a task file names, which are read as text from CSV, as in files."""
    named = (
        column if isinstance(column, tuple) else (str(column),) for column in file.columns.values()
    )
    return [*itertools.chain.from_iterable(named)]


def _rows(
    file: TaskFile,
    table: DatasetTable,
    opened: HubTable,
    numbers: Iterable[int],
    labels: Labels | None,
) -> Iterator[Row]:
    """Yield the rows of a table as those of a file with its columns."""
    # The default id is the published split, or of minimal pairs the configuration, and the number
    # of the row.
    prefix = table.config if file.kind == "mp" else table.split
    features, path = dataset_of(opened).features, Path(str(table))
    record: Any = KINDS[file.kind].examples.record  # type: ignore[attr-defined]
    columns = record.choose(features, path, file)
    for name in ("id", *record.optional()):
        if name in file.columns or (name in features and name not in columns.values()):
            columns[name] = str(file.columns.get(name, name))
    named = {name: features.get(columns[name]) for name in _LABELLED if name in columns}
    names = {name: _class_names(table, feature, labels) for name, feature in named.items()}
    further = _OF_QUESTIONS if file.kind == "qa" else ()
    read = opened.read([*columns.values()], optional=further)
    for number, row in zip(numbers, read):  # noqa: B905 - a whole table's are endless
        value = {name: row[column] for name, column in columns.items()}
        here = Row(path, number, value, place=f"row {number}")
        value.setdefault("id", f"{prefix}-{number}")
        value |= {name: _named(value[name], known) for name, known in names.items()}
        if labels and "tags" in names:
            tags = enumerate(value["tags"])
            value["tags"] = [labels.tag(here, place, tag) for place, tag in tags]
        if file.kind == "qa":
            value["answers"] = _answers(here, row.get("entity_spans"))
        yield here


def _class_names(table: DatasetTable, feature: Any, labels: Labels | None) -> tuple[str, ...]:
    """Return the names that a table has for the numbers of a column, if it has any."""
    # Without them, numbers mean what they mean in files: names or positions (`Labels.number`).
    own = labels.names if labels else ()
    names = tuple(map(plain_name, getattr(getattr(feature, "feature", feature), "names", ()) or ()))
    if names and sorted(names) != sorted(own):
        raise DataError(
            f"{table}: its labels are {', '.join(names)}, not {', '.join(own)}; pin a revision "
            "that has these"
        )
    return names


def _named(value: Any, names: Sequence[str]) -> Any:
    if isinstance(value, list):
        return [_named(item, names) for item in value]
    return names[value] if type(value) is int and 0 <= value < len(names) else value


def _begin_entities(row: Row) -> int:
    """Start every entity of a row with a `B-` tag, in place, and count the changed tags."""
    if "tags" not in row.value:
        return 0
    row.value["tags"], number = begin_entities(row.value["tags"])
    return number


def halves(table: DatasetTable, num_rows: int) -> dict[str, list[int]]:
    """Split row numbers into train and validation, as the library's `train_test_split` does."""
    import datasets  # noqa: PLC0415 - slow import that few tasks need

    if num_rows < 2:
        raise DataError(f"{table}: {num_rows} rows cannot be split into train and validation")
    numbers = datasets.Dataset.from_dict({"row": list(range(num_rows))})
    parts = numbers.train_test_split(train_size=_TRAIN_SHARE, seed=SPLIT_SEED)
    # Read the whole column: reading single rows is slow.
    return {"train": parts["train"]["row"][:], "validation": parts["test"]["row"][:]}


def begin_entities(tags: Sequence[str]) -> tuple[list[str], int]:
    """Start every entity with a `B-` tag, and count the changed tags."""
    # In IOB1 (CoNLL-2003, arXiv:cs/0306050, section 2) an entity starts with `I-` unless it follows
    # another one of its type. An `I-` that continues none starts one, as in conlleval.
    written, previous = [], "O"
    for tag in tags:
        begins = tag.startswith("I-") and previous[2:] != tag[2:]
        written.append(f"B-{tag[2:]}" if begins else tag)
        previous = tag
    return written, sum(old != new for old, new in zip(tags, written, strict=True))


def _answers(row: Row, entities: Any) -> dict[str, Any]:
    """Return answers in SQuAD's format, also those of SuperGLUE: names with one or more spans."""
    answers = row.value["answers"]
    if entities is not None:
        every = zip(entities["text"], entities["start"], strict=True)
        spans = [(text, start) for text, start in every if text in answers]
    elif (spans := _spans(answers)) is None:
        raise row.error(
            "answers need 'text' and 'answer_start' or 'start', found " + str(answers)[:80]
        )
    return {"text": [text for text, _ in spans], "answer_start": [start for _, start in spans]}


def _spans(answers: Any) -> list[tuple[Any, Any]] | None:
    """Return text and start of each answer, in SQuAD's format or as a list of spans."""
    if isinstance(answers, list):
        if not all(isinstance(span, dict) for span in answers):
            return None
        keys = answers[0] if answers else ("text", "start")
        answers = {key: [span[key] for span in answers] for key in keys}
    starts = next((key for key in ("answer_start", "start") if key in answers), None)
    if starts is None or "text" not in answers:
        return None
    return [*zip(answers["text"], answers[starts], strict=True)]


def _pair_rows(file: TaskFile, table: DatasetTable, opener: Opener) -> Iterator[Row]:
    """Yield the rows of all configurations of a dataset, in order of names."""
    # All are of one commit, or one local copy.
    revision = opener.revisions.get(table.dataset)
    configs, commit = HubSplit(table.dataset, revision=revision).config_names(opener.copies)
    if commit is not None:
        opener = replace(opener, revisions={table.dataset: commit})
    for config in configs:
        part = table.model_copy(update={"config": config})
        opened = opener.open(part, texts=_named_columns(file))
        yield from _rows(file, part, opened, itertools.count(), None)
