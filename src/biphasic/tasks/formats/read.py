"""Reads task folders; errors name file and line.

`docs/formats.md` describes the layout of each kind. Nothing is skipped or repaired: an unusable
record is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from biphasic.errors import DataError, reading
from biphasic.files import digest, file_sha256
from biphasic.tasks.formats.beir import read_qrels, read_texts
from biphasic.tasks.formats.examples import (
    RecordT,
    check_values,
    labelled_text,
    multi_label_text,
    question,
    scored_text,
    tagged_sentence,
    unique_records,
)
from biphasic.tasks.formats.folder import (
    RETRIEVAL_KINDS,
    TaskDescription,
    read_description,
    task_files,
)
from biphasic.tasks.formats.labels import check_tag_set, read_labels
from biphasic.tasks.formats.overlap import count_overlaps
from biphasic.tasks.formats.rows import Row, read_jsonl
from biphasic.tasks.formats.templates import (
    DOCUMENT_TEMPLATES,
    PAIR_TEMPLATE,
    QUERY_TEMPLATES,
    fill_document,
    template_fields,
)
from biphasic.tasks.records import (
    SPLITS,
    ClassificationTask,
    Kind,
    MultiLabelTask,
    QuestionTask,
    RegressionTask,
    RetrievalTask,
    TaggingTask,
    Task,
    TaskInfo,
)


def load_task(folder: Path, *, kind: Kind | None = None, name: str | None = None) -> Task:
    """Read a task folder.

    `kind` and `name` are as in `read_description`.

    Raises:
        DataError: A file is missing, or a record is unusable; the message names file and line.
    """
    description = read_description(folder, kind=kind, name=name)
    files = task_files(folder, description)
    info = TaskInfo(
        name=description.name,
        kind=description.kind,
        title=description.title,
        metric=description.metric,
        sha256=digest(_determinants(folder, description, files)),
        trained_on=description.trained_on,
    )
    with reading(folder, DataError):
        task = _read(folder, description, info, files)
    return replace(task, info=replace(info, overlaps=count_overlaps(task)))


def text_fields(folder: Path) -> tuple[str, ...]:
    """Return the fields that make up an example of `sc`, `ml` or `sr`, in order.

    Raises:
        DataError: The folder cannot be read.
    """
    template = read_description(folder).template
    if template is not None:
        return template_fields(template)
    first = next(read_jsonl(folder / "train.jsonl"))
    return template_fields(PAIR_TEMPLATE) if "text_a" in first.value else ("text",)


def _determinants(folder: Path, description: TaskDescription, files: list[str]) -> dict[str, Any]:
    """Return everything that determines the examples.

    Retrieval templates are included only if they differ from the kind's defaults: those of `ir`
    were once fixed, and tasks keep their identities.
    """
    kind = description.kind
    named = {
        "kind": kind,
        "files": {name: file_sha256(folder / name) for name in files},
        "template": PAIR_TEMPLATE if description.template is None else description.template,
    }
    for key, usual in (("query", QUERY_TEMPLATES), ("document", DOCUMENT_TEMPLATES)):
        template = getattr(description, f"{key}_template")
        if template not in {None, usual.get(kind)}:
            named[f"{key}_template"] = template
    return named


def _read(folder: Path, description: TaskDescription, info: TaskInfo, files: list[str]) -> Task:
    kind, template = description.kind, description.template
    if kind in RETRIEVAL_KINDS:
        return _read_retrieval(folder, description, info, files)
    if kind == "qa":
        return QuestionTask(info, _read_splits(folder, question))
    if kind == "sr":
        splits = _read_splits(folder, partial(scored_text, template=template))
        values = (record.value for record in splits["train"])
        check_values(values, where=str(folder / "train.jsonl"))
        return RegressionTask(info, splits)
    labels = read_labels(folder / "labels.json")
    if kind == "sc":
        parse = partial(labelled_text, labels=labels, template=template)
        return ClassificationTask(info, labels, _read_splits(folder, parse))
    if kind == "ml":
        several = partial(multi_label_text, labels=labels, template=template)
        return MultiLabelTask(info, labels, _read_splits(folder, several))
    check_tag_set(labels, where=str(folder / "labels.json"))
    numbers = {label: number for number, label in enumerate(labels)}
    return TaggingTask(
        info, labels, _read_splits(folder, partial(tagged_sentence, numbers=numbers))
    )


def _read_splits(folder: Path, parse: Callable[[Row], RecordT]) -> dict[str, tuple[RecordT, ...]]:
    paths = {split: folder / f"{split}.jsonl" for split in SPLITS}
    return {
        split: unique_records(read_jsonl(path), parse, where=str(path))
        for split, path in paths.items()
    }


def _read_retrieval(
    folder: Path, description: TaskDescription, info: TaskInfo, files: list[str]
) -> RetrievalTask:
    kind = description.kind
    document_template = description.document_template or DOCUMENT_TEMPLATES[kind]
    query_template = description.query_template or QUERY_TEMPLATES[kind]
    corpus = {
        key: fill_document(document_template, title=title, text=text)
        for key, title, text in read_texts(folder / "corpus.jsonl")
    }
    queries = {
        key: fill_document(query_template, title="", text=text)
        for key, _, text in read_texts(folder / "queries.jsonl")
    }
    qrels = {
        split: read_qrels(folder / "qrels" / f"{split}.tsv", queries=queries, corpus=corpus)
        for split in SPLITS
        if f"qrels/{split}.tsv" in files
    }
    return RetrievalTask(info, corpus, queries, qrels)
