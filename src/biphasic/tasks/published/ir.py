"""Published retrieval: MS MARCO, Natural Questions and MLDR, reduced to judged documents."""

from __future__ import annotations

import csv
import hashlib
import itertools
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from biphasic.data.text.hub import HubTable
from biphasic.errors import DataError
from biphasic.seeds import permutation, stream
from biphasic.tasks.kinds.retrieval import Retrieval
from biphasic.tasks.published.tables import (
    SPLIT_SEED,
    DatasetTable,
    Fields,
    Opener,
    PublishedTask,
    Row,
    dataset_of,
    find_column,
    select,
)
from biphasic.tasks.rows.content import TaskContent

MAX_PAIRS = 160_000  # maximum pairs kept: as many as 5 seeds of 1,000 steps of 32 can read
_QRELS_COLUMNS = ("query-id", "corpus-id", "score")
# BEIR's archives call the validation split `dev`.
_QRELS_FILES = {
    "validation": ("qrels/dev.tsv", "qrels/validation.tsv"),
    "test": ("qrels/test.tsv",),
}

# By query and document: 1 for relevant, 0 for judged but not relevant.
Judged = dict[str, dict[str, int]]


@dataclass(frozen=True, kw_only=True)
class PublishedRetrieval(PublishedTask):
    """Tables and columns of a task's texts and judgements."""

    corpus: DatasetTable
    judged: Mapping[str, DatasetTable]  # without validation, the test queries are split in half
    document_id: str = "_id"
    queries: DatasetTable | None = None  # None: the tables of judgements hold them
    pairs: DatasetTable | None = None  # training queries, each with a relevant document
    document_template: str = "Document: {text}"
    has_prompts: bool = True
    kind: str = Retrieval.name
    has_paper_reading: ClassVar[bool] = True

    @property
    def tables(self) -> tuple[DatasetTable, ...]:
        """The tables to read."""
        given = (self.pairs, self.corpus, self.queries, *self.judged.values())
        return tuple(table for table in given if table is not None)

    def read(self, opener: Opener, *, paper: bool) -> tuple[Fields, TaskContent]:
        """Read a task: training pairs, judged queries, and judged documents."""
        # With `paper`, NQ is split in halves again and every training pair is kept, as there.
        judged, texts, origin = _judgements(self, opener, paper=paper)
        pairs = None
        if self.pairs is not None:
            pairs, origin["pairs"] = choose_pairs(opener.open(self.pairs), paper=paper)
        fields: Fields = {"protocol": {"retrieval_corpus": "judged"}, "origin": origin}
        if self.has_prompts:
            fields["query_template"] = Retrieval.query_template
            fields["document_template"] = self.document_template
        qrels = {split: _lines(by_query) for split, by_query in judged.items()}
        if pairs:
            learnt = _distinct(pairs, "query", "positive")
            qrels["train"] = ((query, document, 1) for (query, document), _ in learnt)
        return fields, TaskContent(
            corpus=itertools.chain(
                (
                    {"_id": key, "title": "", "text": row["positive"]}
                    for (key,), row in _distinct(pairs, "positive")
                ),
                _documents(self, opener, judged),
            ),
            queries=itertools.chain(
                ({"_id": key, "text": row["query"]} for (key,), row in _distinct(pairs, "query")),
                ({"_id": query, "text": text} for query, text in texts.items()),
            ),
            qrels=qrels,
        )


def _judgements(
    source: PublishedRetrieval, opener: Opener, *, paper: bool
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
        by_document = judged.setdefault(str(query), {})
        if by_document.setdefault(str(document), int(is_relevant)) != is_relevant:
            raise DataError(
                f"{table}, row {number}: the query '{query}' and the document '{document}' are "
                "judged twice, once as relevant"
            )
    for query, documents in judged.items():
        if not any(documents.values()):
            raise DataError(f"{table}: the query '{query}' has no relevant document")
    return judged


def _read_passages(
    tables: Mapping[str, DatasetTable], opener: Opener
) -> tuple[dict[str, Judged], dict[str, str]]:
    """Read MLDR's judgements: each row is a query with its relevant documents."""
    # As in the study's public code, negative passages are not added to the searched documents.
    judged: dict[str, Judged] = {}
    texts: dict[str, str] = {}
    for split, table in tables.items():
        judged[split] = {}
        for row in opener.stream(table, ("query_id", "query", "positive_passages")):
            query, passages = str(row["query_id"]), row["positive_passages"]
            if not passages:
                raise DataError(f"{table}: the query '{query}' has no relevant document")
            for passage in passages:
                if not isinstance(passage, dict) or "docid" not in passage:
                    raise DataError(
                        f"{table}: a positive passage has no 'docid' ({str(passage)[:80]!r})"
                    )
            judged[split].setdefault(query, {}).update(
                {str(passage["docid"]): 1 for passage in passages}
            )
            if texts.setdefault(query, row["query"]) != row["query"]:
                raise DataError(f"{table}: the id '{query}' is repeated, with another text")
    return judged, texts


def _documents(
    source: PublishedRetrieval, opener: Opener, judged: Mapping[str, Judged]
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
    """Yield the judged rows, and stop reading after the last of them."""
    missing, first = set(needed), dict[str, int]()
    for row in rows:
        key = str(row[id_column])
        if key in missing:
            missing.discard(key)
            first[key] = hash(tuple(row.items()))
            yield key, row
            if not missing:
                return
        elif key in first and hash(tuple(row.items())) != first[key]:
            raise DataError(f"{table}: the id '{key}' is repeated, with another text")
    if missing:
        raise DataError(
            f"{table}: {len(missing)} rows with judgements are missing, such as '{min(missing)}'"
        )


def _lines(judged: Judged) -> Iterator[tuple[str, str, int]]:
    for query, documents in judged.items():
        for document, score in documents.items():
            yield query, document, score


def _distinct(pairs: HubTable | None, *columns: str) -> Iterator[tuple[tuple[str, ...], Row]]:
    """Yield rows whose combination of texts in some columns is new, with the texts' ids."""
    # Equal texts share one id, made from the text: the loss must recognize a document of the batch
    # that is relevant to two of its queries.
    seen = set()
    for row in pairs.read(columns) if pairs else ():
        key = tuple(
            f"{column}-{hashlib.blake2b(row[column].encode(), digest_size=16).hexdigest()}"
            for column in columns
        )
        if key not in seen:
            seen.add(key)
            yield key, row


def choose_pairs(opened: HubTable, *, paper: bool) -> tuple[HubTable, Row]:
    """Keep at most `MAX_PAIRS`, chosen with a fixed seed, in published order."""
    total = len(dataset_of(opened))
    if paper or total <= MAX_PAIRS:
        return opened, {"kept": total, "of": total}
    order = permutation(stream("published-pairs", SPLIT_SEED), total)
    kept = sorted(order[:MAX_PAIRS].tolist())
    return select(opened, kept), {"kept": len(kept), "of": total, "seed": SPLIT_SEED}
