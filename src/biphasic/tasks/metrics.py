"""Scores of predictions, as the field's reference scorers compute them; nothing here trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytrec_eval
from numpy.typing import NDArray
from seqeval.metrics import f1_score as seqeval_f1
from seqeval.scheme import IOB2
from sklearn.metrics import accuracy_score, f1_score

# The first metric of each kind is its primary one unless a task names another.
METRICS_BY_KIND = {
    "sc": ("accuracy", "macro_f1"),
    "tc": ("entity_f1", "sentence_token_f1"),
    "qa": ("f1", "exact_match"),
    "ir": ("ndcg_at_10", "mrr_at_10", "recall_at_100"),
}
RANKING_DEPTH = 100
# scikit-learn and seqeval take a number here; their annotations name only "warn".
_ZERO: Any = 0


def accuracy(labels: NDArray[np.int64], predicted: NDArray[np.int64]) -> float:
    """Return the share of right labels."""
    return float(accuracy_score(labels, predicted))


def macro_f1(labels: NDArray[np.int64], predicted: NDArray[np.int64]) -> float:
    """Return the mean F1 over the labels that occur in either array."""
    return float(f1_score(labels, predicted, average="macro", zero_division=_ZERO))


def entity_f1(tags: Sequence[list[str]], predicted: Sequence[list[str]]) -> float:
    """Return the micro F1 over entities, strict: a stray `I-` begins nothing."""
    score: Any = seqeval_f1(
        list(tags),
        list(predicted),
        average="micro",
        mode="strict",
        scheme=IOB2,
        zero_division=_ZERO,
    )
    return float(score)


def sentence_token_f1(
    labels: Sequence[NDArray[np.int64]], predicted: Sequence[NDArray[np.int64]], *, num_labels: int
) -> NDArray[np.float64]:
    """Return for each sentence the macro F1 over the labels that occur in it, `O` among them.

    The reference study's score of token classification is the mean of these, as its stored values
    show: a sentence of only `O`, predicted as such, scores 1.
    """
    lengths = np.array([len(sentence) for sentence in labels])
    cells = len(lengths) * num_labels
    base = np.repeat(np.arange(len(lengths)) * num_labels, lengths)
    expected, given = np.concatenate(labels), np.concatenate(predicted)
    right = np.bincount((base + expected)[expected == given], minlength=cells)
    total = np.bincount(base + expected, minlength=cells) + np.bincount(
        base + given, minlength=cells
    )
    f1 = 2.0 * right / np.maximum(total, 1)
    present = (total > 0).reshape(-1, num_labels)
    return (f1.reshape(-1, num_labels) * present).sum(axis=1) / present.sum(axis=1)


def top_documents(scores: NDArray[np.floating], *, depth: int = RANKING_DEPTH) -> NDArray[np.int64]:
    """Rank documents for each query: best score first, ties by column.

    Columns must stand in descending order of document id: that is how trec_eval breaks ties, so a
    ranking made here equals the one it would make from the raw scores.

    Args:
        scores: [num_queries, num_documents].
        depth: Documents to rank.

    Returns:
        Columns, [num_queries, min(depth, num_documents)].
    """
    depth = min(depth, scores.shape[1])
    ranked = np.empty((scores.shape[0], depth), dtype=np.int64)
    for query, row in enumerate(scores):
        # Every document that ties with the last of the best stays a candidate.
        threshold = np.partition(row, len(row) - depth)[len(row) - depth]
        candidates = np.flatnonzero(row >= threshold)
        order = np.argsort(-row[candidates], kind="stable")
        ranked[query] = candidates[order[:depth]]
    return ranked


def retrieval_scores(
    rankings: Mapping[str, Sequence[str]], qrels: Mapping[str, Mapping[str, int]]
) -> dict[str, dict[str, float]]:
    """Return for each query nDCG@10, reciprocal rank within 10 and recall at 100.

    pytrec_eval reads scores as 32-bit floats and sorts them itself, so it is given ranks instead
    of similarities: integers that fall strictly, which it can neither round together nor reorder.
    """
    runs = {
        query: {document: float(len(documents) - rank) for rank, document in enumerate(documents)}
        for query, documents in rankings.items()
    }
    relevant = {query: dict(documents) for query, documents in qrels.items()}
    evaluator = pytrec_eval.RelevanceEvaluator(
        relevant, {"ndcg_cut.10", "recip_rank", "recall.100"}
    )
    scores = {}
    for query, values in evaluator.evaluate(runs).items():
        reciprocal = values["recip_rank"]
        scores[query] = {
            "ndcg_at_10": values["ndcg_cut_10"],
            "mrr_at_10": reciprocal if reciprocal >= 1 / 10 else 0.0,
            "recall_at_100": values["recall_100"],
        }
    return scores
