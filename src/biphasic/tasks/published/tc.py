"""Published token classification: CoNLL-2003, OntoNotes 5 and UNER, all English."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from biphasic.errors import DataError
from biphasic.tasks.published.tables import (
    Content,
    DatasetTable,
    Opener,
    Row,
    dataset_of,
    find_column,
    label_name,
    label_names,
)
from biphasic.tasks.records import SPLITS


@dataclass(frozen=True, slots=True)
class TaggingSource:
    """Columns of a task's words and tags, in the published splits.

    Attributes:
        dataset: Id on the hub.
        labels: Names of the tags, in the order of their numbers.
    """

    dataset: str
    words: str
    tags: str
    labels: tuple[str, ...]

    @property
    def tables(self) -> tuple[DatasetTable, ...]:
        """The tables to read."""
        return tuple(DatasetTable(self.dataset, split) for split in SPLITS)


def read_tagging(source: TaggingSource, opener: Opener) -> Content:
    """Read a task; a sentence's id is its split and row number.

    Raises:
        DataError: A column is missing, a tag is unknown, or numbers of words and tags differ.
    """
    splits: dict[str, list[Row]] = {}
    begun: dict[str, int] = {}
    for table in source.tables:
        opened = opener.open(table)
        features = dataset_of(opened).features
        feature = features[find_column(table, features, source.tags)]
        names = label_names(table, getattr(feature, "feature", None), source.labels)
        splits[table.split], begun[table.split] = [], 0
        for number, row in enumerate(opened.read([source.words, source.tags])):
            words = row[source.words]
            published = [label_name(table, number, tag, names) for tag in row[source.tags]]
            if not words or len(words) != len(published):
                raise DataError(f"{table}, row {number}: {len(words)} words, {len(published)} tags")
            tags, num_begun = begin_entities(published)
            sentence = {"id": f"{table.split}-{number}", "tokens": words, "tags": tags}
            splits[table.split].append(sentence)
            begun[table.split] += num_begun
    return Content(
        description={"origin": {"tags_rewritten_as_b": begun}}, labels=source.labels, splits=splits
    )


def begin_entities(tags: Sequence[str]) -> tuple[list[str], int]:
    """Start every entity with a `B-` tag, and count the changed tags.

    In IOB1, the published scheme of CoNLL-2003, an entity starts with `I-` unless it directly
    follows another one of its type. An `I-` that continues no entity of its type starts one, as in
    conlleval. Valid BIO2 does not change.

    Reference: Tjong Kim Sang and De Meulder 2003, arXiv:cs/0306050, section 2.
    """
    written, previous = [], "O"
    for tag in tags:
        begins = tag.startswith("I-") and previous[2:] != tag[2:]
        written.append(f"B-{tag[2:]}" if begins else tag)
        previous = tag
    return written, sum(old != new for old, new in zip(tags, written, strict=True))
