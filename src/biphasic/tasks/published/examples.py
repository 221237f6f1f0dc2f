"""Hub tables with a row per example: classification, tagging, questions and minimal pairs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from biphasic.data.text.hub import HubTable, config_names
from biphasic.errors import DataError
from biphasic.tasks.published.tables import (
    Opener,
    Origin,
    Row,
    dataset_of,
    find_column,
    label_name,
    label_names,
    read_splits,
)
from biphasic.tasks.records import SPLITS, TaskContent
from biphasic.tasks.task_file import DatasetTable, HubTables, TaskFile

_QUESTION = ("question", "query")
_CONTEXT = ("context", "passage")
_STARTS = ("answer_start", "start")


def read_texts(file: TaskFile, hub: HubTables, opener: Opener) -> tuple[Origin, TaskContent]:
    """Read texts and labels; a row's id is its published split and row number."""
    labels = _labels(file)
    splits = read_splits(hub, opener, partial(_labelled_rows, file, labels))
    return {}, TaskContent(labels=labels, splits=splits)


def _labels(file: TaskFile) -> tuple[str, ...]:
    if file.labels is None:
        raise DataError(f"task '{file.name}': name its labels (labels), in their order")
    return tuple(map(str, file.labels))


def _labelled_rows(
    file: TaskFile,
    labels: tuple[str, ...],
    table: DatasetTable,
    opened: HubTable,
    numbers: Iterable[int],
) -> Iterator[Row]:
    features = dataset_of(opened).features
    label_column = find_column(table, features, str(file.columns.get("label", "label")))
    names = label_names(table, features[label_column], labels)
    named = file.columns.get("text", "text")
    columns = named if isinstance(named, tuple) else (str(named),)
    fields = ("text",) if len(columns) == 1 else ("text_a", "text_b")
    for number, row in zip(numbers, opened.read([*columns, label_column])):  # noqa: B905
        texts = {name: row[column] for name, column in zip(fields, columns, strict=True)}
        label = labels.index(label_name(table, number, row[label_column], names))
        yield {"id": f"{table.split}-{number}", **texts, "label": label}


def read_tagging(file: TaskFile, hub: HubTables, opener: Opener) -> tuple[Origin, TaskContent]:
    """Read words and tags, in the published splits; an id is a split and a row number."""
    splits: dict[str, list[Row]] = {}
    begun: dict[str, int] = {}
    words_column, tags_column = (str(file.columns.get(name, name)) for name in ("tokens", "tags"))
    for split, table in zip(SPLITS, hub.tables, strict=True):
        opened = opener.open(table)
        features = dataset_of(opened).features
        feature = features[find_column(table, features, tags_column)]
        names = label_names(table, getattr(feature, "feature", None), _labels(file))
        splits[split], begun[split] = [], 0
        for number, row in enumerate(opened.read([words_column, tags_column])):
            words = row[words_column]
            published = [label_name(table, number, tag, names) for tag in row[tags_column]]
            if not words or len(words) != len(published):
                raise DataError(f"{table}, row {number}: {len(words)} words, {len(published)} tags")
            tags, num_begun = begin_entities(published)
            sentence = {"id": f"{table.split}-{number}", "tokens": words, "tags": tags}
            splits[split].append(sentence)
            begun[split] += num_begun
    return {"tags_rewritten_as_b": begun}, TaskContent(labels=_labels(file), splits=splits)


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


def read_questions(_: TaskFile, hub: HubTables, opener: Opener) -> tuple[Origin, TaskContent]:
    """Read questions; one without an id gets its published split and row number."""
    return {}, TaskContent(splits=read_splits(hub, opener, _question_rows))


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


def read_pairs(_: TaskFile, hub: HubTables, opener: Opener) -> tuple[Origin, TaskContent]:
    """Read all configurations of a dataset with BLiMP's columns, in order of their names."""
    # All are of one commit, or one local copy.
    dataset = hub.test.dataset
    configs, commit = config_names(
        dataset, revision=opener.revisions.get(dataset), copies=opener.copies
    )
    if commit is not None:
        opener = replace(opener, revisions={dataset: commit})
    return {}, TaskContent(labels=(), splits={"test": _pair_rows(hub.test, opener, configs)})


def _pair_rows(table: DatasetTable, opener: Opener, configs: list[str]) -> Iterator[Row]:
    for config in configs:
        opened = opener.open(table.model_copy(update={"config": config}))
        for number, row in enumerate(opened.read(_COLUMNS)):
            yield {"id": f"{config}-{number}", **{name: row[name] for name in _COLUMNS}}
