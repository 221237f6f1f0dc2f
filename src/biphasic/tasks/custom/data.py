"""Converts the user's files to the rows of a task folder; errors name file and line."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from biphasic.errors import DataError, reading
from biphasic.seeds import permutation, stream
from biphasic.tasks.custom.files import plain_suffix
from biphasic.tasks.custom.readers import (
    joined_answers,
    read_conll,
    read_csv,
    read_squad,
    read_tsv,
)
from biphasic.tasks.custom.task_file import COLUMNS_BY_KIND, TaskFile
from biphasic.tasks.formats.examples import check_values, parser_of, unique_records
from biphasic.tasks.formats.folder import RETRIEVAL_KINDS, TaskContent
from biphasic.tasks.formats.labels import (
    Labels,
    check_labels,
    check_tag_set,
    found_labels,
    found_tags,
    read_labels,
    single_labels,
)
from biphasic.tasks.formats.read import read_qrels, read_texts
from biphasic.tasks.formats.rows import Row, read_jsonl
from biphasic.tasks.formats.templates import template_fields
from biphasic.tasks.records import LABEL_KINDS, SPLITS, TEXT_KINDS

USUAL_TEXTS = (
    ("text",),
    ("sentence",),
    ("text_a", "text_b"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
)
"""Usual column names of single texts and of pairs."""
_VALUES = (("value",), ("score",), ("label",))
_LABELS = (("labels",), ("label",))
_NAMED: tuple[Callable[[Path], Any], ...] = (read_jsonl, read_csv, read_tsv)
"""Readers of files with named columns."""
_TRAINING = "the training split"
ItemT = TypeVar("ItemT")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def read_content(
    file: TaskFile, files: dict[str, Path], *, where: str
) -> tuple[TaskContent, dict[str, int]]:
    """Read the user's files; return their content, and the number of examples by split.

    Raises:
        DataError: The data are unusable; the message names file and line.
    """
    with reading(where, DataError):
        if file.kind in RETRIEVAL_KINDS:
            return _read_retrieval(file, files, where=where)
        return _read_examples(file, files, where=where)


def _read_examples(
    file: TaskFile, files: dict[str, Path], *, where: str
) -> tuple[TaskContent, dict[str, int]]:
    paths = {split: files[split] for split in SPLITS if split in files}
    rows = {split: _read_rows(path, file) for split, path in paths.items()}
    for split, path in paths.items():
        if not rows[split]:
            raise DataError(f"{path}: the {split} split is empty")
    _check_same_texts(rows)
    labels = _labels(file, files, rows["train"])
    names = labels.names if labels else ()
    parse = parser_of(file.kind, labels=names, template=file.template)
    for split, path in paths.items():
        rows[split] = [_canonical(row, file, labels) for row in rows[split]]
        unique_records(rows[split], parse, where=str(path))
    cut = cut_splits(rows, file, where=where)
    if file.kind == "sr":
        check_values((row.real("value") for row in cut["train"]), where=str(paths["train"]))
    splits = {split: [row.value for row in kept] for split, kept in cut.items()}
    return TaskContent(splits=splits, labels=names), _counts(cut)


def _read_rows(path: Path, file: TaskFile) -> list[Row]:
    """Return the rows of one file with canonical field names."""
    reader = _reader(path, file)
    with reading(path, DataError):
        rows = list(reader(path))
    if reader not in _NAMED:
        for name in sorted(file.columns.model_fields_set):
            if not isinstance(getattr(file.columns, name), int):
                raise DataError(
                    f"{path}: its columns have no names, so 'columns.{name}' matches none"
                )
        return rows
    return _renamed_rows(rows, path, file)


def _reader(path: Path, file: TaskFile) -> Callable[[Path], Any]:
    suffix = plain_suffix(path)
    if suffix == ".jsonl":
        return read_jsonl
    if file.kind == "qa":
        return read_squad
    if file.kind == "tc":
        token, tag = (
            column if isinstance(column, int) else None
            for column in (file.columns.tokens, file.columns.tags)
        )
        return partial(read_conll, token_column=token, tag_column=tag)
    return read_csv if suffix == ".csv" else read_tsv


def _renamed_rows(rows: Sequence[Row], path: Path, file: TaskFile) -> list[Row]:
    """Return rows with fields named as in docs/formats.md; the first row decides the columns."""
    if not rows:
        return []
    chosen = _choose(rows[0].value.keys(), path, file)
    if "id" not in chosen and (late := next((row for row in rows if "id" in row.value), None)):
        raise late.error("has an 'id', but the first row has none; give every row one, or no row")
    return [_renamed(row, chosen) for row in rows]


def _check_same_texts(splits: Mapping[str, Sequence[Row]]) -> None:
    """Check that either all splits have pairs or none do: each file's columns are chosen alone."""
    train = splits["train"][0]
    for split, (first, *_) in splits.items():
        if ("text_a" in first.value) != ("text_a" in train.value):
            units = ("pairs of texts", "single texts")
            tested, learnt = units if "text_a" in first.value else reversed(units)
            raise first.error(f"the {split} split has {tested}, but {train.path} has {learnt}")


def _choose(there: Collection[str], path: Path, file: TaskFile) -> dict[str, str]:
    """Return the column of each field."""
    kind, columns = file.kind, file.columns
    if kind in TEXT_KINDS:
        chosen = _text_columns(there, path, file)
        if kind == "sc":
            chosen["label"] = columns.label or "label"
        elif kind == "ml":
            chosen["labels"] = columns.labels or _usual(_LABELS, there, path=path)[0]
        else:
            chosen["value"] = columns.value or _usual(_VALUES, there, path=path)[0]
    else:
        names = sorted(COLUMNS_BY_KIND[kind] - {"id"})
        chosen = {name: str(getattr(columns, name) or name) for name in names}
    if columns.id or "id" in there:
        chosen["id"] = columns.id or "id"
    for column in chosen.values():
        if column not in there:
            raise DataError(f"{path}:1: no column '{column}'; {_available(there)}")
    return chosen


def _text_columns(there: Collection[str], path: Path, file: TaskFile) -> dict[str, str]:
    fields = template_fields(file.template) if file.template is not None else ()
    given = file.columns.text
    if given is not None:
        chosen = _numbered((given,) if isinstance(given, str) else given)
    elif fields and all(field in there for field in fields):
        chosen = {}
    else:
        chosen = _numbered(_usual(USUAL_TEXTS, there, path=path))
    if not fields:
        return chosen
    # A template may name any column; columns that it omits are not part of the text.
    return {field: chosen.get(field, field) for field in fields}


def _numbered(names: Sequence[str]) -> dict[str, str]:
    return dict(zip(("text",) if len(names) == 1 else ("text_a", "text_b"), names, strict=True))


def _usual(
    options: Sequence[tuple[str, ...]], there: Collection[str], *, path: Path
) -> tuple[str, ...]:
    """Return the only option whose columns all exist."""
    complete = [names for names in options if all(name in there for name in names)]
    if len(complete) == 1:
        return complete[0]
    if not complete:
        usual = ", ".join(" and ".join(names) for names in options)
        raise DataError(f"{path}:1: no column of the usual names ({usual}); {_available(there)}")
    fitting = " or ".join(" and ".join(names) for names in complete)
    raise DataError(f"{path}:1: columns {fitting} all match; choose in a task file (columns)")


def _available(there: Collection[str]) -> str:
    return f"there are {', '.join(map(repr, there))}; name columns in a task file (columns)"


def _renamed(row: Row, chosen: dict[str, str]) -> Row:
    value: dict[str, Any] = {}
    for name, column in chosen.items():
        if column not in row.value:
            raise row.error(f"no field '{column}'")
        value[name] = row.value[column]
    answers = value.get("answers")
    if isinstance(answers, list) and all(isinstance(answer, dict) for answer in answers):
        value["answers"] = joined_answers(answers)
    return replace(row, value=value)


def _labels(file: TaskFile, files: dict[str, Path], rows: Sequence[Row]) -> Labels | None:
    """Return the labels of the task; None if it has none."""
    if file.kind not in LABEL_KINDS:
        return None
    if file.labels is not None:
        labels = Labels(tuple(map(str, file.labels)), "the task file")
    elif "labels" in files:
        path = files["labels"]
        labels = Labels(read_labels(path), path.name, is_numbered=True)
    elif file.kind == "tc":
        labels = found_tags(rows, source=_TRAINING)
    elif file.kind == "ml":
        singles = (single for row in rows for single in single_labels(row, "labels"))
        labels = found_labels(singles, "labels", source=_TRAINING)
    else:
        labels = found_labels(rows, "label", source=_TRAINING)
    check_labels(labels.names, where=labels.source)
    if file.kind == "tc":
        check_tag_set(labels.names, where=labels.source)
    return labels


def _canonical(row: Row, file: TaskFile, labels: Labels | None) -> Row:
    """Return a row in task-folder form: with an id, labels as numbers, tags by name."""
    value = {**row.value, "id": row.id()}
    if labels and file.kind == "sc":
        value["label"] = labels.number(row, "label")
    elif labels and file.kind == "ml":
        value["labels"] = [
            labels.number(single, "labels") for single in single_labels(row, "labels")
        ]
    elif labels and isinstance(row.value.get("tags"), list):
        value["tags"] = [
            labels.tag(row, position, tag) for position, tag in enumerate(row.value["tags"])
        ]
    elif file.kind == "sr" and isinstance(row.value["value"], str):
        text = row.value["value"].strip()
        if not _NUMBER.fullmatch(text):
            raise row.error(f"'{text}' is not a number")
        value["value"] = float(text)
    return replace(row, value=value)


def _read_retrieval(
    file: TaskFile, files: dict[str, Path], *, where: str
) -> tuple[TaskContent, dict[str, int]]:
    corpus = {key: (title, text) for key, title, text in read_texts(files["corpus"])}
    queries = {key: text for key, _, text in read_texts(files["queries"])}
    judged = {
        split: list(read_qrels(files[split], queries=queries, corpus=corpus).items())
        for split in SPLITS
        if split in files
    }
    cut = cut_splits(judged, file, where=where)
    content = TaskContent(
        corpus=[
            {"_id": key, "title": title, "text": text} for key, (title, text) in corpus.items()
        ],
        queries=[{"_id": key, "text": text} for key, text in queries.items()],
        qrels={
            split: [
                (query, document, score)
                for query, documents in judgements
                for document, score in documents.items()
            ]
            for split, judgements in cut.items()
        },
    )
    return content, _counts(cut)


def _counts(splits: Mapping[str, Sequence[Any]]) -> dict[str, int]:
    return {split: len(items) for split, items in splits.items()}


def cut_splits(
    splits: Mapping[str, Sequence[ItemT]], file: TaskFile, *, where: str
) -> dict[str, list[ItemT]]:
    """Take splits out of the training split, then keep as many examples of each as allowed.

    Both choices are random and depend only on the seed and the number of examples. The order of
    examples does not change. Of two missing splits, `test` takes its share first.

    Raises:
        DataError: A split would be empty.
    """
    cut = {split: list(items) for split, items in splits.items()}
    shares = {"test": file.test_fraction, "validation": file.validation_fraction}
    fractions = {split: share for split, share in shares.items() if share}
    if fractions:
        whole = cut.pop("train")
        order = permutation(stream("task-split", file.seed), len(whole))
        start = 0
        for split, fraction in fractions.items():
            end = start + round(fraction * len(whole))
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
