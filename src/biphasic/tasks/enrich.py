"""Pairs made from pairs: with hard negatives of one miner, or with a teacher's vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from biphasic.data.pairs import NO_SHARED_WORD, Pairs, write_pairs, written_once
from biphasic.errors import ConfigError
from biphasic.tasks.baselines import bm25_scores
from biphasic.tasks.embedding import (
    Choices,
    Embedder,
    choices_by_role,
    embedding_settings,
    fetch_embedding_model,
    files_digest,
    load_embedder,
)
from biphasic.tasks.metrics import top_documents
from biphasic.tasks.pairs import check_folder

# The miner without a model: Robertson et al. 1994, as in Lucene, with bm25s's English words.
BM25 = "bm25"
_BM25_ORIGIN: dict[str, Any] = {"miner": BM25, "version": 3}


# Reports how many texts are done, of how many, and what is done with them.
_Report = Callable[[float, float, str], None]


def teach(
    pairs: Pairs,
    teacher: str,
    folder: Path,
    *,
    width: int | None = None,
    report: _Report = lambda *_: None,
) -> Pairs:
    """Write pairs with a teacher's vectors, of its own or a smaller width."""
    # A smaller width keeps the directions in which the vectors are largest.
    check_folder(folder)
    embedder, identity = _embedder(teacher, report)
    if width is not None and width > embedder.width:
        raise ConfigError(f"--width {width}: {teacher} gives {embedder.width} dimensions")

    def embed(texts: list[str]) -> NDArray[np.float32]:
        vectors, _ = embedder.embed(texts)
        return vectors if width is None else _reduced(vectors, width)

    origin = {"pairs": pairs.content_hash, "teacher": identity, "width": width or embedder.width}
    counts = pairs.details.get("counts", {})
    write = partial(write_pairs, pairs=pairs, origin=origin, counts=counts, embed=embed)
    return written_once(folder, origin, write)


def mine(
    pairs: Pairs,
    miner: str,
    folder: Path,
    *,
    number: int,
    margin: float,
    depth: int,
    report: _Report = lambda *_: None,
) -> Pairs:
    """Write pairs with negatives: the documents most similar to a query, but less than its own."""
    # A negative's similarity is at most `margin` times the positive's, so that few negatives are
    # unmarked answers. Known answers are left out. The miner is an embedding model, or BM25,
    # for which a document without a word of the query is no negative.
    # Reference: Moreira et al. 2024 (NV-Retriever), arXiv:2407.15831, section 4.2 (TopK-PercPos).
    check_folder(folder)
    documents, queries = np.unique(pairs.positives), np.unique(pairs.queries)
    sides, of_miner = (None, _BM25_ORIGIN) if miner == BM25 else _by_role(miner, report)
    settings = {"number": number, "margin": margin, "depth": depth}
    origin = {"pairs": pairs.content_hash, **of_miner, **settings}
    known, left_out = set(pairs.known.tolist()), dict.fromkeys((NO_SHARED_WORD,), 0)

    def negatives(pair: int, similarities: _Similarities) -> tuple[str, ...]:
        report(pair, len(pairs), "searching negatives")
        query, positive = int(pairs.queries[pair]), int(pairs.positives[pair])
        scores = similarities(int(np.searchsorted(queries, query)))
        own = scores[np.searchsorted(documents, positive)]
        limit = own - (1 - margin) * abs(own)
        (nearest,) = top_documents(scores[None], depth=depth)
        rows = [int(documents[place]) for place in nearest if scores[place] <= limit]
        code = query * pairs.num_texts
        fitting = (row for row in rows if row != query and code + row not in known)
        chosen = [row for row, _ in zip(fitting, range(number), strict=False)]
        if sides is None:
            positive = [row for row in chosen if scores[np.searchsorted(documents, row)] > 0]
            left_out[NO_SHARED_WORD] += len(chosen) - len(positive)
            chosen = positive
        return tuple(pairs.texts(chosen))

    def write(folder: Path) -> Pairs:
        compare = _bm25 if sides is None else partial(_cosines, *sides)
        similarities = compare(pairs.texts(documents), pairs.texts(queries))
        mined = (
            replace(pair, negatives=negatives(place, similarities), scores=())
            for place, pair in enumerate(pairs)
        )
        counts = pairs.details.get("counts", {})
        further = {"left_out": left_out} if sides is None else {}
        return write_pairs(folder, mined, origin=origin, counts=counts, further=further)

    return written_once(folder, origin, write)


# Gives the similarities of a query to all documents, [num_documents].
_Similarities = Callable[[int], NDArray[np.float32]]


def _cosines(
    of_queries: Embedder, of_documents: Embedder, documents: Sequence[str], queries: Sequence[str]
) -> _Similarities:
    answers, questions = of_documents.embed(documents)[0], of_queries.embed(queries)[0]
    return lambda query: answers @ questions[query]


def _bm25(documents: Sequence[str], queries: Sequence[str]) -> _Similarities:
    scores = bm25_scores(documents)
    return lambda query: scores(queries[query])


def _embedder(model: str, report: _Report) -> tuple[Embedder, str]:
    """Load an embedding model, whose vectors have length 1; return a hash of its files as well."""
    folder = fetch_embedding_model(model)
    settings = embedding_settings(folder, Choices(normalize=True))
    return load_embedder(settings, watch=_embedding(report)), files_digest(folder)


def _embedding(report: _Report) -> Callable[[int, int], None]:
    return lambda done, total: report(done, total, "embedding")


def _by_role(model: str, report: _Report) -> tuple[tuple[Embedder, Embedder], dict[str, Any]]:
    """Load a miner: its embedders of queries and of documents, with their prompts; its origin."""
    folder, choices = fetch_embedding_model(model), Choices(normalize=True)
    embedder = load_embedder(embedding_settings(folder, choices), watch=_embedding(report))
    by_role = choices_by_role(folder, choices)
    query, document = (
        replace(embedder, settings=embedding_settings(folder, by_role[role]))
        for role in ("query", "document")
    )
    prompts = [side.settings.prefix for side in (query, document)]
    origin: dict[str, Any] = {"miner": files_digest(folder)}
    if set(prompts) != {embedder.settings.prefix}:
        origin["prompts"] = prompts
    return (query, document), origin


def _reduced(vectors: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    exact = vectors.astype(np.float64)
    _, directions = np.linalg.eigh(exact.T @ exact)
    # Not centred: products of vectors are kept, which are their similarities.
    reduced = exact @ directions[:, ::-1][:, :width]
    return (reduced / np.linalg.norm(reduced, axis=1, keepdims=True)).astype(np.float32)
