"""Published retrieval: MS MARCO, Natural Questions and MLDR, reduced to judged documents."""

from __future__ import annotations

import csv
import itertools
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from biphasic.errors import DataError
from biphasic.seeds import permutation, stream
from biphasic.tasks.published.pairs import Pairs, choose_pairs
from biphasic.tasks.published.tables import (
    SPLIT_SEED,
    Content,
    DatasetTable,
    Opener,
    Row,
    find_column,
)

_QUERY_TEMPLATE = "Query: {text}"
_QRELS_COLUMNS = ("query-id", "corpus-id", "score")
# BEIR's archives call the validation split `dev`.
_QRELS_FILES = {
    "validation": ("qrels/dev.tsv", "qrels/validation.tsv"),
    "test": ("qrels/test.tsv",),
}

Judged = dict[str, dict[str, int]]
"""By query and document: 1 for relevant, 0 for judged but not relevant."""


@dataclass(frozen=True, slots=True)
class RetrievalSource:
    """Tables and columns of a task's texts and judgements.

    Attributes:
        judged: Judgements by split; without one for validation, the test queries are split
            in half.
        queries: All queries; None if the tables of judgements hold them.
        pairs: Training queries, each with a relevant document; None if the task is evaluated after
            training on another task.
        document_template: Turns a document into one text.
    """

    corpus: DatasetTable
    judged: Mapping[str, DatasetTable]
    document_id: str = "_id"
    queries: DatasetTable | None = None
    pairs: DatasetTable | None = None
    document_template: str = "Document: {text}"

    def tables(self, *, is_zero_shot: bool) -> tuple[DatasetTable, ...]:
        """Return the tables to read."""
        pairs = None if is_zero_shot else self.pairs
        given = (pairs, self.corpus, self.queries, *self.judged.values())
        return tuple(table for table in given if table is not None)


def read_retrieval(
    source: RetrievalSource, opener: Opener, *, is_zero_shot: bool, paper: bool
) -> Content:
    """Read a task: training pairs, judged queries, and judged documents.

    With `paper`, NQ is split in halves again and every training pair is kept, as in the study.

    Raises:
        DataError: A column, a judged query or a judged document is missing.
    """
    judged, texts, origin = _judgements(source, opener, paper=paper)
    pairs = Pairs(None)
    if source.pairs is not None and not is_zero_shot:
        pairs, origin["pairs"] = choose_pairs(opener.open(source.pairs), paper=paper)
    prompts = {"query_template": _QUERY_TEMPLATE, "document_template": source.document_template}
    queries = ({"_id": query, "text": text} for query, text in texts.items())
    return Content(
        description={
            # Prompts are learned in fine-tuning; without it, the model reads plain texts.
            **({} if is_zero_shot else prompts),
            "protocol": {"retrieval_corpus": "judged"},
            "origin": origin,
        },
        corpus=itertools.chain(pairs.documents(), _documents(source, opener, judged)),
        queries=itertools.chain(pairs.queries(), queries),
        qrels={
            **({"train": pairs.qrels()} if pairs.opened else {}),
            **{split: _lines(by_query) for split, by_query in judged.items()},
        },
    )


def _judgements(
    source: RetrievalSource, opener: Opener, *, paper: bool
) -> tuple[dict[str, Judged], dict[str, str], Row]:
    """Return judgements by split, the texts of judged queries, and how the splits were made."""
    if source.queries is None:
        judged, texts = _read_passages(source.judged, opener)
        return judged, texts, {}
    judged = {
        split: _read_qrels(table, _open_qrels(source.corpus, table, split, opener))
        for split, table in source.judged.items()
    }
    origin: Row = {}
    if "validation" not in judged:
        origin["split_seed"] = secrets.randbits(32) if paper else SPLIT_SEED
        judged = halve_queries(judged["test"], seed=origin["split_seed"])
    needed = {query for by_query in judged.values() for query in by_query}
    rows = opener.stream(source.queries, ("_id", "text"))
    texts = {key: row["text"] for key, row in _needed_rows(source.queries, rows, needed, "_id")}
    return judged, texts, origin


def halve_queries(judged: Judged, *, seed: int) -> dict[str, Judged]:
    """Split judgements by query: a random half, rounded, is validation and the rest is test."""
    queries = sorted(judged)
    order = permutation(stream("published-halves", seed), len(queries))
    chosen = {queries[index] for index in order[: round(0.5 * len(queries))]}
    return {
        "validation": {query: judged[query] for query in queries if query in chosen},
        "test": {query: judged[query] for query in queries if query not in chosen},
    }


def _open_qrels(
    corpus: DatasetTable, table: DatasetTable, split: str, opener: Opener
) -> Iterator[Row]:
    """Open judgements: `qrels/` of a copied BEIR archive, or a separate dataset."""
    archive = DatasetTable(corpus.dataset, split, "qrels")
    if file := opener.find_file(archive, *_QRELS_FILES[split]):
        return _read_tsv(file, table)
    return opener.open(table).read(_QRELS_COLUMNS)


def _read_tsv(file: Path, table: DatasetTable) -> Iterator[Row]:
    with file.open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        for column in _QRELS_COLUMNS:
            find_column(table, reader.fieldnames or (), column)
        yield from reader


def _read_qrels(table: DatasetTable, rows: Iterable[Row]) -> Judged:
    judged: Judged = {}
    for number, row in enumerate(rows):
        query, document, score = (row[name] for name in _QRELS_COLUMNS)
        try:
            is_relevant = int(score) >= 1
        except (TypeError, ValueError):
            raise DataError(
                f"{table}, row {number}: the score {score!r} is not an integer"
            ) from None
        judged.setdefault(str(query), {})[str(document)] = int(is_relevant)
    for query, documents in judged.items():
        if not any(documents.values()):
            raise DataError(f"{table}: the query '{query}' has no relevant document")
    return judged


def _read_passages(
    tables: Mapping[str, DatasetTable], opener: Opener
) -> tuple[dict[str, Judged], dict[str, str]]:
    """Read MLDR's judgements: each row is a query with its relevant documents.

    As in the study's public code, negative passages are not added to the searched documents.
    """
    judged: dict[str, Judged] = {}
    texts: dict[str, str] = {}
    for split, table in tables.items():
        judged[split] = {}
        for row in opener.stream(table, ("query_id", "query", "positive_passages")):
            query, passages = str(row["query_id"]), row["positive_passages"]
            if not passages:
                raise DataError(f"{table}: the query '{query}' has no relevant document")
            judged[split][query] = {_document_id(table, passage): 1 for passage in passages}
            texts[query] = row["query"]
    return judged, texts


def _document_id(table: DatasetTable, passage: Any) -> str:
    if not isinstance(passage, dict) or "docid" not in passage:
        raise DataError(f"{table}: a positive passage has no 'docid' ({str(passage)[:80]!r})")
    return str(passage["docid"])


def _documents(
    source: RetrievalSource, opener: Opener, judged: Mapping[str, Judged]
) -> Iterator[Row]:
    """Return the documents judged in any split; the table is opened immediately."""
    has_title = "{title}" in source.document_template
    columns = (source.document_id, "text", *(("title",) if has_title else ()))
    needed = {key for split in judged.values() for documents in split.values() for key in documents}
    rows = opener.stream(source.corpus, columns)
    return (
        {"_id": key, "title": (row["title"] or "") if has_title else "", "text": row["text"]}
        for key, row in _needed_rows(source.corpus, rows, needed, source.document_id)
    )


def _needed_rows(
    table: DatasetTable, rows: Iterable[Row], needed: set[str], id_column: str
) -> Iterator[tuple[str, Row]]:
    """Yield the judged rows, and stop reading after the last of them.

    Raises:
        DataError: A row is missing.
    """
    missing = set(needed)
    for row in rows:
        key = str(row[id_column])
        if key in missing:
            missing.discard(key)
            yield key, row
            if not missing:
                return
    if missing:
        raise DataError(
            f"{table}: {len(missing)} rows with judgements are missing, such as '{min(missing)}'"
        )


def _lines(judged: Judged) -> Iterator[tuple[str, str, int]]:
    for query, documents in judged.items():
        for document, score in documents.items():
            yield query, document, score
