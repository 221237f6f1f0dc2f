"""Published extractive question answering: SQuAD, SQuAD v2 and ReCoRD."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from biphasic.data.text.hub import HubTable
from biphasic.errors import DataError
from biphasic.tasks.published.tables import (
    Content,
    DatasetTable,
    Opener,
    Row,
    cut_splits,
    dataset_of,
    find_column,
)

_QUESTION = ("question", "query")
_CONTEXT = ("context", "passage")
_STARTS = ("answer_start", "start")


@dataclass(frozen=True, slots=True)
class QuestionSource:
    """A dataset: its training split gives train and validation, its validation split is test."""

    dataset: str

    @property
    def tables(self) -> tuple[DatasetTable, ...]:
        """The tables to read: train, then test."""
        return DatasetTable(self.dataset, "train"), DatasetTable(self.dataset, "validation")


def read_questions(source: QuestionSource, opener: Opener) -> Content:
    """Read a task; a question without an id gets its published split and row number.

    Raises:
        DataError: A column is missing, or answers have no positions.
    """
    train, test = source.tables
    return Content(splits=cut_splits(opener, train, test, _rows))


def _rows(table: DatasetTable, opened: HubTable, numbers: Iterable[int]) -> Iterator[Row]:
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
