"""Retrieval from hub tables, such as MS MARCO: of all documents, or of the judged ones."""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from biphasic.config import nearest
from biphasic.data.text.hub_tables import HubSplit, HubTable, find_copy
from biphasic.errors import DataError
from biphasic.rows import Row as Line
from biphasic.rows import rows
from biphasic.seeds import permutation, stream
from biphasic.tasks.folder import DatasetTable, HubTables, TaskFile
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.records import TaskContent

if TYPE_CHECKING:
    from datasets import Dataset

SPLIT_SEED = 42

Row = dict[str, Any]
Origin = dict[str, Any]  # what a description says about the origin of its data, beside tables


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens tables and records the source of each."""

    copies: Path | None  # local copies as `owner/name/`, used instead of the hub
    revisions: Mapping[str, str]  # by dataset; others use the newest
    origins: list[Row] = field(default_factory=list)

    def open(
        self, table: DatasetTable, *, streaming: bool = False, texts: Sequence[str] = ()
    ) -> HubTable:
        """Open a table; without streaming, its rows support random access."""
        revision = self.revisions.get(table.dataset)
        split = HubSplit(table.dataset, table.config, table.split, revision, streaming=streaming)
        opened = split.open(self.copies, texts=texts)
        self.origins.append(opened.origin)
        return opened

    def stream(self, table: DatasetTable, columns: Sequence[str]) -> Iterator[Row]:
        """Read columns of a table row by row, with bounded memory."""
        # A local copy may hold the files that BEIR and MLDR publish, without configurations.
        names = (f"{table.split}.jsonl", f"{table.split}.jsonl.gz")
        if (file := self.find_file(table, *names)) is None:
            return self.open(table, streaming=True).read(columns)
        return (columns_of(line, columns) for line in rows(file))

    def find_file(self, table: DatasetTable, *names: str) -> Path | None:
        """Return the first of several files that a local copy has, and record it as read."""
        folder = find_copy(table.dataset, self.copies)
        files = (folder / name for name in names) if folder else ()
        file = next((file for file in files if file.is_file()), None)
        if file is not None:
            origin = {"dataset": table.dataset, "config": table.config, "split": table.split}
            self.origins.append({**origin, "revision": None, "local": True})
        return file


def columns_of(line: Line, columns: Sequence[str]) -> Row:
    """Return these columns of a row."""
    for column in columns:
        if column not in line.value:
            raise line.error(f"no field '{column}'{nearest(column, line.value)}")
    return {column: line.value[column] for column in columns}


def dataset_of(opened: HubTable) -> Dataset:
    """Return the rows of a table opened without streaming."""
    return cast("Dataset", opened.rows)


def select(opened: HubTable, indices: Sequence[int]) -> HubTable:
    """Return some rows of a table opened without streaming."""
    # The library hashes what it is called with: an array in a thousandth of the time of a list.
    return replace(opened, rows=dataset_of(opened).select(np.array(indices, np.int64)))


MAX_PAIRS = 160_000  # maximum pairs kept: as many as 5 seeds of 1,000 steps of 32 can read
_QRELS_COLUMNS = ("query-id", "corpus-id", "score")
# BEIR's archives call the validation split `dev`.
_QRELS_FILES = {
    "validation": ("qrels/dev.tsv", "qrels/validation.tsv"),
    "test": ("qrels/test.tsv",),
}

# By query and document: the score, 0 for not relevant.
Judged = dict[str, dict[str, int]]


def read_retrieval(
    file: TaskFile, hub: HubTables, opener: Opener, *, paper: bool
) -> tuple[Origin, TaskContent]:
    """Read training pairs, judged queries, and documents."""
    # With `paper`, NQ is split in halves again and every training pair is kept, as there.
    # As in the study, a task that searches judged documents alone has no others, and its scores
    # are 0 and 1. Other tasks have what the tables have.
    is_cut = file.protocol.get("retrieval_corpus") == "judged"
    judged, texts, origin = _judgements(hub, opener, paper=paper, is_cut=is_cut)
    pairs = None
    if hub.pairs is not None:
        pairs, origin["pairs"] = _choose_pairs(opener.open(hub.pairs), paper=paper)
    qrels = {split: _lines(by_query) for split, by_query in judged.items()}
    if pairs:
        learnt = _distinct(pairs, "query", "positive")
        qrels["train"] = ((query, document, 1) for (query, document), _ in learnt)
    return origin, TaskContent(
        corpus=itertools.chain(
            (
                {"_id": key, "title": "", "text": row["positive"]}
                for (key,), row in _distinct(pairs, "positive")
            ),
            _documents(file, hub, opener, judged, is_cut=is_cut),
        ),
        queries=itertools.chain(
            ({"_id": key, "text": row["query"]} for (key,), row in _distinct(pairs, "query")),
            ({"_id": query, "text": text} for query, text in texts.items()),
        ),
        qrels=qrels,
    )


def _judgements(
    hub: HubTables, opener: Opener, *, paper: bool, is_cut: bool
) -> tuple[dict[str, Judged], dict[str, str], Row]:
    """Return judgements by split, the texts of judged queries, and how the splits were made."""
    named = {"validation": hub.validation, "test": hub.test}
    tables = {split: table for split, table in named.items() if table is not None}
    if hub.queries is None:
        judged, texts = _read_passages(tables, opener)
        return judged, texts, {}
    judged = {
        split: _read_qrels(table, _open_qrels(_corpus(hub), table, split, opener), is_cut=is_cut)
        for split, table in tables.items()
    }
    origin: Row = {}
    if "validation" not in judged:
        origin["split_seed"] = secrets.randbits(32) if paper else SPLIT_SEED
        judged = halve_queries(judged["test"], seed=origin["split_seed"])
    needed = {query for by_query in judged.values() for query in by_query}
    rows = opener.stream(hub.queries, ("_id", "text"))
    texts = {key: row["text"] for key, row in _needed_rows(hub.queries, rows, needed, "_id")}
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
    archive = DatasetTable(dataset=corpus.dataset, split=split, config="qrels")
    if file := opener.find_file(archive, *_QRELS_FILES[split]):
        return (columns_of(row, _QRELS_COLUMNS) for row in rows(file))
    return opener.open(table).read(_QRELS_COLUMNS)


def _read_qrels(table: DatasetTable, rows: Iterable[Row], *, is_cut: bool) -> Judged:
    judged: Judged = {}
    for number, row in enumerate(rows):
        query, document, score = (row[name] for name in _QRELS_COLUMNS)
        try:
            whole = int(score)
            if (isinstance(score, float) and score != whole) or (whole < 0 and not is_cut):
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            raise DataError(
                f"{table}, row {number}: expected a score of 0 or more as a whole number, not "
                f"{score!r}"
            ) from None
        score = int(whole >= 1) if is_cut else whole
        by_document = judged.setdefault(str(query), {})
        if (earlier := by_document.setdefault(str(document), score)) != score:
            raise DataError(
                f"{table}, row {number}: the query '{query}' and the document '{document}' are "
                f"judged twice, with the scores {earlier} and {score}"
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


def _corpus(hub: HubTables) -> DatasetTable:
    assert hub.corpus is not None  # noqa: S101 - task files are checked for it
    return hub.corpus


def _documents(
    file: TaskFile,
    hub: HubTables,
    opener: Opener,
    judged: Mapping[str, Judged],
    *,
    is_cut: bool,
) -> Iterator[Row]:
    """Return all documents, or those judged in any split; the table is opened immediately."""
    usual = getattr(KINDS[file.kind].examples, "document_template", "")
    has_title = "{title}" in (file.document_template or usual)
    columns = (hub.document_id, "text", *(("title",) if has_title else ()))
    corpus = _corpus(hub)
    needed = {key for split in judged.values() for documents in split.values() for key in documents}
    rows = opener.stream(corpus, columns)
    return (
        {"_id": key, "title": (row["title"] or "") if has_title else "", "text": row["text"]}
        for key, row in _needed_rows(corpus, rows, needed, hub.document_id, has_others=not is_cut)
    )


def _needed_rows(
    table: DatasetTable,
    rows: Iterable[Row],
    needed: set[str],
    id_column: str,
    *,
    has_others: bool = False,
) -> Iterator[tuple[str, Row]]:
    """Yield the judged rows, and stop reading after the last of them; or yield all rows."""
    # Memory holds an id and a hash of each row, and no text.
    missing, first = set(needed), dict[str, int]()
    for row in rows:
        key = str(row[id_column])
        if key in first:
            if hash(tuple(row.items())) != first[key]:
                raise DataError(f"{table}: the id '{key}' is repeated, with another text")
        elif has_others or key in missing:
            missing.discard(key)
            first[key] = hash(tuple(row.items()))
            yield key, row
            if not missing and not has_others:
                return
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


def _choose_pairs(opened: HubTable, *, paper: bool) -> tuple[HubTable, Row]:
    """Keep at most `MAX_PAIRS`, chosen with a fixed seed, in published order."""
    total = len(dataset_of(opened))
    if paper or total <= MAX_PAIRS:
        return opened, {"kept": total, "of": total}
    order = permutation(stream("published-pairs", SPLIT_SEED), total)
    numbers = sorted(order[:MAX_PAIRS].tolist())
    return select(opened, numbers), {"kept": len(numbers), "of": total, "seed": SPLIT_SEED}
