"""Published sequence classification: GLUE's MNLI, QQP and SST-2."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from biphasic.data.text.hub import HubTable
from biphasic.tasks.published.tables import (
    Content,
    DatasetTable,
    Opener,
    Row,
    cut_splits,
    dataset_of,
    find_column,
    label_name,
    label_names,
)


@dataclass(frozen=True, slots=True)
class ClassificationSource:
    """Tables and columns of a task's texts and labels.

    Attributes:
        train: DatasetTable split into train and validation.
        test: DatasetTable used as the test split.
        columns: One column of texts, or two for pairs.
        template: Joins a pair into one text.
    """

    train: DatasetTable
    test: DatasetTable
    columns: tuple[str] | tuple[str, str]
    labels: tuple[str, ...]
    template: str | None = None

    @property
    def tables(self) -> tuple[DatasetTable, ...]:
        """The tables to read."""
        return self.train, self.test


def read_classification(source: ClassificationSource, opener: Opener) -> Content:
    """Read a task; a row's id is its published split and row number.

    Raises:
        DataError: A column is missing or a label unknown.
    """
    return Content(
        description={"template": source.template} if source.template else {},
        labels=source.labels,
        splits=cut_splits(opener, source.train, source.test, partial(_rows, source)),
    )


def _rows(
    source: ClassificationSource, table: DatasetTable, opened: HubTable, numbers: Iterable[int]
) -> Iterator[Row]:
    features = dataset_of(opened).features
    label_column = find_column(table, features, "label")
    names = label_names(table, features[label_column], source.labels)
    fields = ("text",) if len(source.columns) == 1 else ("text_a", "text_b")
    for number, row in zip(numbers, opened.read([*source.columns, label_column])):  # noqa: B905
        texts = {name: row[column] for name, column in zip(fields, source.columns, strict=True)}
        label = source.labels.index(label_name(table, number, row[label_column], names))
        yield {"id": f"{table.split}-{number}", **texts, "label": label}
