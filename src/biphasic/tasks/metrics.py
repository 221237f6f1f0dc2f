"""Scores of predictions, as the field's reference scorers compute them."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytrec_eval
from numpy.typing import NDArray
from scipy import stats
from seqeval.metrics.v1 import precision_recall_fscore_support
from seqeval.scheme import IOB2, Entities
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from biphasic.data.text.words import UNSPACED
from biphasic.tasks.records import NO_PREDICTION

# As deep as recall at 100 looks; nDCG@10 and the reciprocal rank look at ten.
_RANKING_DEPTH = 100
# scikit-learn and seqeval accept a number here; their annotations only allow "warn".
_ZERO: Any = 0
_LEFT_OUT: Any = np.nan
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ROUNDING = 8 * float(np.finfo(np.float32).eps)  # of numbers around 1, computed in fp32
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
# A character of a script without spaces or Hangul, or a run of others without spaces.
_APART = (
    f"{UNSPACED}\u1100-\u11ff\u3005-\u3007\u3099\u309a\u3131-\u318e\ua960-\ua97c\uac00-\ud7fb"
    "\uff66-\uffdc\U0001b000-\U0001b16f"
)
_CHARACTERS = re.compile(rf"[{_APART}]|[^\s{_APART}]+")


def accuracy(labels: NDArray[np.int64], predicted: NDArray[np.int64]) -> float:
    """Return the share of correct labels."""
    return float(accuracy_score(labels, predicted))


def macro_f1(labels: NDArray[np.int64], predicted: NDArray[np.int64]) -> float:
    """Return the mean F1 over the labels that occur in either array."""
    return float(f1_score(labels, predicted, average="macro", zero_division=_ZERO))


def matthews(labels: NDArray[np.int64], predicted: NDArray[np.int64]) -> float:
    """Return the Matthews correlation, for any number of labels; 0 where it is undefined."""
    # The formula divides zero by zero here.
    if _is_constant(labels) or _is_constant(predicted):
        return 0.0
    return float(matthews_corrcoef(labels, predicted))


def multi_label_scores(
    expected: NDArray[np.bool_], predicted: NDArray[np.bool_]
) -> dict[str, float]:
    """Return micro F1, macro F1 and the share of texts whose labels are all correct."""
    # Macro F1 is over the labels that occur anywhere. Both arrays are [num_texts, num_labels].
    is_any = bool((expected | predicted).any())
    return {
        "micro_f1": float(f1_score(expected, predicted, average="micro", zero_division=_ZERO)),
        # `nan` leaves labels out of the mean that occur nowhere. 0 would count them as failures.
        "macro_f1": float(f1_score(expected, predicted, average="macro", zero_division=_LEFT_OUT))
        if is_any
        else 0.0,
        "subset_accuracy": float(accuracy_score(expected, predicted)),
    }


def spearman(values: NDArray[np.float64], predicted: NDArray[np.float64]) -> float:
    """Return the rank correlation; 0 where it is undefined because either array is constant."""
    return _correlation(stats.spearmanr, values, predicted)


def pearson(values: NDArray[np.float64], predicted: NDArray[np.float64]) -> float:
    """Return the linear correlation; 0 where it is undefined because either array is constant."""
    return _correlation(stats.pearsonr, values, predicted)


def rounding_ties(predicted: NDArray[np.float64], *, scale: float = 1.0) -> NDArray[np.float64]:
    """Return predictions that are equal where at least half differ by rounding alone."""
    # A collapsed model gives all texts one vector; only the order of rounding errors is left.
    # The median, which a few texts apart cannot move.
    middle = float(np.median(predicted))
    is_near = np.abs(predicted - middle) <= _ROUNDING * scale
    return np.where(is_near, middle, predicted) if is_near.mean() >= 1 / 2 else predicted


def _correlation(
    correlate: Callable[..., Any], values: NDArray[np.float64], predicted: NDArray[np.float64]
) -> float:
    # A model that predicts one number for every text has learned nothing; records hold no NaN.
    if _is_constant(values) or _is_constant(predicted):
        return 0.0
    return float(correlate(values, predicted).statistic)


def _is_constant(values: NDArray[Any]) -> bool:
    return bool((values == values[0]).all())


@dataclass(frozen=True, slots=True)
class EntityScores:
    """Entity scores of a split; an entity is correct if its borders and type match."""

    f1: float  # micro F1
    by_type: dict[str, dict[str, float]]
    expected: NDArray[np.int64]  # number of entities in each sentence
    predicted: NDArray[np.int64]  # number of predicted ones
    right: NDArray[np.int64]  # number of correct ones


def entity_scores(tags: Sequence[list[str]], predicted: Sequence[list[str]]) -> EntityScores:
    """Compare BIO2 tags by entity, strictly: a stray `I-` starts no entity."""
    # seqeval extracts the entities again for every score unless they are passed in.
    entities: dict[str, Any] = {
        "entities_true": Entities(list(tags), IOB2),
        "entities_pred": Entities(list(predicted), IOB2),
    }
    expected, present = (
        [set(sentence) for sentence in extracted.entities] for extracted in entities.values()
    )

    def score(average: str | None) -> Any:
        return precision_recall_fscore_support(
            list(tags),
            list(predicted),
            average=average,
            scheme=IOB2,
            zero_division=_ZERO,
            **entities,
        )

    # seqeval gives a row for each type that occurs, in this order.
    names = sorted({entity.tag for sentence in (*expected, *present) for entity in sentence})
    table = np.transpose(score(None)).tolist() if names else []
    return EntityScores(
        f1=float(score("micro")[2]),
        by_type={
            name: {"precision": precision, "recall": recall, "f1": f1, "support": int(support)}
            for name, (precision, recall, f1, support) in zip(names, table, strict=True)
        },
        expected=np.array([len(sentence) for sentence in expected]),
        predicted=np.array([len(sentence) for sentence in present]),
        right=np.array([len(both[0] & both[1]) for both in zip(expected, present, strict=True)]),
    )


def sentence_token_f1(
    labels: Sequence[NDArray[np.int64]], predicted: Sequence[NDArray[np.int64]], *, num_labels: int
) -> NDArray[np.float64]:
    """Return for each sentence the macro F1 over the labels that occur in it, including `O`."""
    # The reference study's score is the mean of these, as its stored values show. A word without
    # prediction counts as missed and adds no label.
    lengths = np.array([len(sentence) for sentence in labels])
    cells = len(lengths) * num_labels
    base = np.repeat(np.arange(len(lengths)) * num_labels, lengths)
    expected, returned = np.concatenate(labels), np.concatenate(predicted)
    # A word that was cut off counts among the expected ones only.
    made = returned != NO_PREDICTION
    right = np.bincount((base + expected)[expected == returned], minlength=cells)
    total = np.bincount(base + expected, minlength=cells) + np.bincount(
        (base + returned)[made], minlength=cells
    )
    f1 = 2.0 * right / np.maximum(total, 1)
    # Labels that occur in no list of the sentence are left out of its mean.
    present = (total > 0).reshape(-1, num_labels)
    return (f1.reshape(-1, num_labels) * present).sum(axis=1) / present.sum(axis=1)


def top_documents(
    scores: NDArray[np.floating], *, depth: int = _RANKING_DEPTH
) -> NDArray[np.int64]:
    """Return the columns of the best `depth` documents of each query, [num_queries, depth]."""
    # Columns are in descending order of document id and ties go to the first, so the ranking equals
    # that of trec_eval on the raw scores.
    depth = min(depth, scores.shape[1])
    ranked = np.empty((scores.shape[0], depth), dtype=np.int64)
    for query, row in enumerate(scores):
        # Keep every document that ties with the last one selected.
        # A partition is linear in the corpus, where a sort of millions of documents for each query
        # is not.
        threshold = np.partition(row, len(row) - depth)[len(row) - depth]
        candidates = np.flatnonzero(row >= threshold)
        order = np.argsort(-row[candidates], kind="stable")
        ranked[query] = candidates[order[:depth]]
    return ranked


def retrieval_scores(
    rankings: Mapping[str, Sequence[str]], qrels: Mapping[str, Mapping[str, int]]
) -> dict[str, dict[str, float]]:
    """Return for each query nDCG@10, reciprocal rank within 10 and recall at 100."""
    # pytrec_eval reads scores as 32-bit floats and sorts them itself. Strictly decreasing integer
    # ranks instead of similarities cannot change their order. Without a relevant document: 0.
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
            # pytrec_eval has no cut for this measure.
            "mrr_at_10": reciprocal if reciprocal >= 1 / 10 else 0.0,
            "recall_at_100": values["recall_100"],
        }
    return scores


def answer_scores(
    prediction: str, answers: Sequence[str], *, tokens: str | None = None
) -> tuple[float, float]:
    """Return SQuAD's exact match and token F1 against the best of several answers."""
    # In lower case, without ASCII punctuation and a, an, the; empty answers are ignored. A question
    # without another is unanswerable (arXiv:1606.05250, section 6.1; arXiv:1806.03822, section 4).
    split = _characters if tokens == "characters" else _words
    predicted = split(prediction)
    # An answer such as "the" has no word left, and every empty prediction would match it.
    accepted = [words for words in map(split, answers) if words] or [[]]
    exact = max(float(predicted == words) for words in accepted)
    return exact, max(_token_f1(predicted, words) for words in accepted)


def question_metrics(
    scores: NDArray[np.float64], is_answerable: NDArray[np.bool_]
) -> dict[str, float]:
    """Average exact match and F1, [num_questions, 2], also over parts of the questions."""
    # The parts are HasAns_exact, HasAns_f1 and NoAns_exact of the official script, version 2.0.
    exact, f1 = scores.mean(axis=0).tolist()
    metrics = {"f1": f1, "exact_match": exact}
    if is_answerable.all():
        return metrics
    metrics["no_answer_accuracy"] = float(scores[~is_answerable, 0].mean())
    if is_answerable.any():
        exact, f1 = scores[is_answerable].mean(axis=0).tolist()
        metrics |= {"has_answer_f1": f1, "has_answer_exact_match": exact}
    return metrics


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def _characters(text: str) -> list[str]:
    # As MLQA's scorer does for Chinese (arXiv:1910.07475): no punctuation of Unicode, articles
    # stay. Kana and Hangul are counted in the same way; KorQuAD's F1 is of characters as well.
    plain = text.lower().translate(_PUNCTUATION)
    return _CHARACTERS.findall("".join(c for c in plain if unicodedata.category(c)[0] != "P"))


def _token_f1(predicted: list[str], expected: list[str]) -> float:
    # SQuAD 2.0: where either is empty, F1 is 1 if both are, and else 0.
    if not predicted or not expected:
        return float(predicted == expected)
    shared = (Counter(predicted) & Counter(expected)).total()
    if not shared:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(expected)
    return 2 * precision * recall / (precision + recall)
