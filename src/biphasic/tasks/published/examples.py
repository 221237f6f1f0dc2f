"""Published tables with a row per example: classification, tagging and question answering."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from biphasic.data.text.hub import HubTable, config_names
from biphasic.errors import DataError
from biphasic.tasks.kinds.classification import Classification
from biphasic.tasks.kinds.minimal_pairs import MinimalPairs
from biphasic.tasks.kinds.questions import QuestionAnswering
from biphasic.tasks.kinds.tagging import Tagging
from biphasic.tasks.published.tables import (
    DatasetTable,
    Fields,
    Opener,
    PublishedTask,
    Row,
    cut_splits,
    dataset_of,
    find_column,
    label_name,
    label_names,
)
from biphasic.tasks.records import SPLITS
from biphasic.tasks.rows.content import TaskContent

_QUESTION = ("question", "query")
_CONTEXT = ("context", "passage")
_STARTS = ("answer_start", "start")


@dataclass(frozen=True, kw_only=True)
class PublishedTexts(PublishedTask):
    """GLUE's MNLI, QQP and SST-2: tables and columns of texts and labels."""

    train: DatasetTable  # split into train and validation
    test: DatasetTable
    columns: tuple[str] | tuple[str, str]
    labels: tuple[str, ...]
    template: str | None = None
    kind: str = Classification.name

    @property
    def tables(self) -> tuple[DatasetTable, ...]:
        """The tables to read."""
        return self.train, self.test

    def read(self, opener: Opener, *, paper: bool) -> tuple[Fields, TaskContent]:
        """Read a task; a row's id is its published split and row number."""
        splits = cut_splits(opener, self.train, self.test, partial(_labelled_rows, self))
        fields = {"template": self.template} if self.template else {}
        return fields, TaskContent(labels=self.labels, splits=splits)


def _labelled_rows(
    source: PublishedTexts, table: DatasetTable, opened: HubTable, numbers: Iterable[int]
) -> Iterator[Row]:
    features = dataset_of(opened).features
    label_column = find_column(table, features, "label")
    names = label_names(table, features[label_column], source.labels)
    fields = ("text",) if len(source.columns) == 1 else ("text_a", "text_b")
    for number, row in zip(numbers, opened.read([*source.columns, label_column])):  # noqa: B905
        texts = {name: row[column] for name, column in zip(fields, source.columns, strict=True)}
        label = source.labels.index(label_name(table, number, row[label_column], names))
        yield {"id": f"{table.split}-{number}", **texts, "label": label}


@dataclass(frozen=True, kw_only=True)
class PublishedTagging(PublishedTask):
    """CoNLL-2003, OntoNotes 5 and UNER: columns of words and tags, in the published splits."""

    dataset: str
    words: str
    tags: str
    labels: tuple[str, ...]  # in the order of their numbers
    kind: str = Tagging.name

    @property
    def tables(self) -> tuple[DatasetTable, ...]:
        """The tables to read."""
        return tuple(DatasetTable(self.dataset, split) for split in SPLITS)

    def read(self, opener: Opener, *, paper: bool) -> tuple[Fields, TaskContent]:
        """Read a task; a sentence's id is its split and row number."""
        splits: dict[str, list[Row]] = {}
        begun: dict[str, int] = {}
        for table in self.tables:
            opened = opener.open(table)
            features = dataset_of(opened).features
            feature = features[find_column(table, features, self.tags)]
            names = label_names(table, getattr(feature, "feature", None), self.labels)
            splits[table.split], begun[table.split] = [], 0
            for number, row in enumerate(opened.read([self.words, self.tags])):
                words = row[self.words]
                published = [label_name(table, number, tag, names) for tag in row[self.tags]]
                if not words or len(words) != len(published):
                    raise DataError(
                        f"{table}, row {number}: {len(words)} words, {len(published)} tags"
                    )
                tags, num_begun = begin_entities(published)
                sentence = {"id": f"{table.split}-{number}", "tokens": words, "tags": tags}
                splits[table.split].append(sentence)
                begun[table.split] += num_begun
        fields = {"origin": {"tags_rewritten_as_b": begun}}
        return fields, TaskContent(labels=self.labels, splits=splits)


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


@dataclass(frozen=True, kw_only=True)
class PublishedQuestions(PublishedTask):
    """SQuAD, SQuAD v2 and ReCoRD; the validation split is test."""

    dataset: str
    kind: str = QuestionAnswering.name

    @property
    def tables(self) -> tuple[DatasetTable, DatasetTable]:
        """The tables to read: train, then test."""
        return DatasetTable(self.dataset, "train"), DatasetTable(self.dataset, "validation")

    def read(self, opener: Opener, *, paper: bool) -> tuple[Fields, TaskContent]:
        """Read a task; a question without an id gets its published split and row number."""
        return {}, TaskContent(splits=cut_splits(opener, *self.tables, _question_rows))


def _question_rows(table: DatasetTable, opened: HubTable, numbers: Iterable[int]) -> Iterator[Row]:
    existing = dataset_of(opened).column_names
    question, context = (find_column(table, existing, *names) for names in (_QUESTION, _CONTEXT))
    columns = [question, context, find_column(table, existing, "answers")]
    read_answers = _answers_by_entity if "entity_spans" in existing else _answers_by_position
    rows = opened.read(columns, optional=("id", "entity_spans"))
    for number, row in zip(numbers, rows):  # noqa: B905 - the numbers of a whole table are endless
        answers = read_answers(row)
        if answers is None:
            raise DataError(
                f"{table}, row {number}: answers need 'text' and 'answer_start' or 'start', "
                f"found {str(row['answers'])[:80]}"
            )
        key = row.get("id", f"{table.split}-{number}")
        yield {"id": key, "question": row[question], "context": row[context], "answers": answers}


def _answers_by_position(row: Row) -> Row | None:
    """Read answers in SQuAD's format, or as a list of spans."""
    spans: Any = row["answers"]
    if isinstance(spans, list):
        if not all(isinstance(span, dict) for span in spans):
            return None
        keys = spans[0].keys() if spans else ("text", "start")
        spans = {key: [span[key] for span in spans] for key in keys}
    starts = next((key for key in _STARTS if key in spans), None)
    if starts is None or "text" not in spans:
        return None
    return {"text": spans["text"], "answer_start": spans[starts]}


def _answers_by_entity(row: Row) -> Row | None:
    """Read answers in SuperGLUE's format: names, each with one or more spans."""
    spans = row["entity_spans"]
    chosen = [
        (text, start)
        for text, start in zip(spans["text"], spans["start"], strict=True)
        if text in row["answers"]
    ]
    return {"text": [text for text, _ in chosen], "answer_start": [start for _, start in chosen]}


_COLUMNS = ("sentence_good", "sentence_bad", "UID")


@dataclass(frozen=True, kw_only=True)
class PublishedPairs(PublishedTask):
    """A dataset with BLiMP's columns; all pairs are the test split."""

    dataset: str
    kind: str = MinimalPairs.name

    @property
    def tables(self) -> tuple[DatasetTable, ...]:
        """Return one table for all: they are of one commit, or one local copy."""
        return (DatasetTable(self.dataset, "train"),)  # as the hub calls the only split

    def read(self, opener: Opener, *, paper: bool) -> tuple[Fields, TaskContent]:
        """Read all configurations, in order of their names."""
        del paper
        configs, commit = config_names(
            self.dataset, revision=opener.revisions.get(self.dataset), copies=opener.copies
        )
        if commit is not None:
            opener = replace(opener, revisions={self.dataset: commit})
        return {}, TaskContent(labels=(), splits={"test": self._rows(opener, configs)})

    def _rows(self, opener: Opener, configs: list[str]) -> Iterator[Row]:
        for config in configs:
            opened = opener.open(replace(self.tables[0], config=config))
            for number, row in enumerate(opened.read(_COLUMNS)):
                yield {"id": f"{config}-{number}", **{name: row[name] for name in _COLUMNS}}
