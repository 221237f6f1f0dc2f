"""Reads task folders; errors name file and line.

`docs/formats.md` describes the layout of each kind. Nothing is skipped or repaired: an unusable
record is an error. Retrieval has the layout of BEIR: Thakur et al. 2021, arXiv:2104.08663.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from biphasic.errors import DataError, reading
from biphasic.files import digest, file_sha256
from biphasic.tasks.formats.examples import check_values, parser_of, unique_records
from biphasic.tasks.formats.folder import (
    QRELS_HEADER,
    RETRIEVAL_KINDS,
    TaskDescription,
    read_description,
    task_files,
)
from biphasic.tasks.formats.labels import check_tag_set, read_labels
from biphasic.tasks.formats.rows import read_jsonl, read_lines
from biphasic.tasks.formats.templates import (
    DOCUMENT_TEMPLATES,
    PAIR_TEMPLATE,
    QUERY_TEMPLATES,
    fill_document,
    template_fields,
)
from biphasic.tasks.records import (
    LABEL_KINDS,
    SPLITS,
    ExampleTask,
    Question,
    RetrievalTask,
    TaggedSentence,
    Task,
    TaskInfo,
)

_MOST_DIGITS = 9
Qrels = dict[str, dict[str, int]]


def load_task(folder: Path) -> Task:
    """Read a task folder.

    Raises:
        DataError: A file is missing, or a record is unusable; the message names file and line.
    """
    description = read_description(folder)
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
    kind = description.kind
    if kind in RETRIEVAL_KINDS:
        return _read_retrieval(folder, description, info, files)
    labels = read_labels(folder / "labels.json") if kind in LABEL_KINDS else ()
    if kind == "tc":
        check_tag_set(labels, where=str(folder / "labels.json"))
    parse = parser_of(kind, labels=labels, template=description.template)
    paths = {split: folder / f"{split}.jsonl" for split in SPLITS}
    splits = {
        split: unique_records(read_jsonl(path), parse, where=str(path))
        for split, path in paths.items()
    }
    if kind == "sr":
        check_values((record.value for record in splits["train"]), where=str(paths["train"]))
    return ExampleTask(info, splits, labels)


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


def read_texts(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield id, title and text of each document or query.

    Raises:
        DataError: A line is unusable, an id is repeated, or there are none.
    """
    seen: set[str] = set()
    for row in read_jsonl(path):
        if "_id" not in row.value:
            raise row.error("no field '_id'")
        key = row.id("_id")
        if key in seen:
            raise row.error(f"the id '{key}' is repeated")
        seen.add(key)
        yield key, row.text("title", ""), row.text("text")
    if not seen:
        raise DataError(f"{path}: the file is empty")


def read_qrels(path: Path, *, queries: Container[str], corpus: Container[str]) -> Qrels:
    """Read the judgements of one split.

    Returns:
        Scores by document, for each judged query.

    Raises:
        DataError: A line is unusable, names an unknown query or document, or contradicts another;
            or no document is relevant.
    """
    qrels: Qrels = {}
    lines = read_lines(path)
    header = next(lines, (1, ""))[1].rstrip("\r\n")
    if header != QRELS_HEADER:
        names = QRELS_HEADER.replace("\t", ", ")
        raise DataError(f"{path}:1: the header must be {names}, tab-separated, not {header!r}")
    for number, line in lines:
        query, document, score = _judgement(line, where=f"{path}:{number}")
        if query not in queries:
            raise DataError(f"{path}:{number}: unknown query '{query}'; it is not in the queries")
        if document not in corpus:
            raise DataError(f"{path}:{number}: unknown document '{document}'; not in the corpus")
        if qrels.setdefault(query, {}).setdefault(document, score) != score:
            earlier = qrels[query][document]
            raise DataError(
                f"{path}:{number}: query '{query}' and document '{document}' have the score "
                f"{earlier} already"
            )
    if not any(score for judged in qrels.values() for score in judged.values()):
        raise DataError(f"{path}: the split is empty (no relevant document)")
    return qrels


def _judgement(line: str, *, where: str) -> tuple[str, str, int]:
    fields = line.rstrip("\r\n").split("\t")
    if len(fields) != 3:
        raise DataError(
            f"{where}: expected query, document and score, tab-separated; found {len(fields)} "
            f"field{'s' * (len(fields) != 1)}"
        )
    query, document, score = fields
    if not (score.isascii() and score.isdecimal() and len(score) <= _MOST_DIGITS):
        raise DataError(f"{where}: expected a score of 0 or more as a whole number, not {score!r}")
    return query, document, int(score)


def count_overlaps(task: Task, trainer: Task | None = None) -> dict[str, int]:
    """Count the examples of each later split that also occur in an earlier one.

    Two examples are the same if their texts match, in lower case and with white space collapsed:
    both texts of a pair, question and context, the words of a sentence, or the query. Queries
    include the prompts of their task, so tasks with different prompts share none. A trainer's
    training split replaces the task's own.

    Returns:
        Counts by `"train/test"` and the like, without zeros.
    """
    keys = {split: list(_keys(task, split)) for split in SPLITS}
    if trainer is not None:
        keys["train"] = list(_keys(trainer, "train"))
    counts = {}
    for earlier, later in combinations(SPLITS, 2):
        known = set(keys[earlier])
        if count := sum(key in known for key in keys[later]):
            counts[f"{earlier}/{later}"] = count
    return counts


def _keys(task: Task, split: str) -> Iterator[bytes]:
    for text in _texts(task, split):
        normal = " ".join(text.lower().split())
        yield hashlib.blake2b(normal.encode("utf-8"), digest_size=16).digest()


def _texts(task: Task, split: str) -> Iterator[str]:
    if isinstance(task, RetrievalTask):
        for query in task.qrels.get(split, ()):
            yield task.queries[query]
        return
    for record in task.splits[split]:
        if isinstance(record, TaggedSentence):
            yield " ".join(record.words)
        elif isinstance(record, Question):
            yield f"{record.question}\n{record.context}"
        else:
            yield record.text
