"""Exact match and token F1 of extractive question answering, SQuAD v1.1 and v2.0.

Definition: Rajpurkar et al. 2016, arXiv:1606.05250, section 6.1, and Rajpurkar et al. 2018,
arXiv:1806.03822, section 4, for questions without an answer. Texts are compared in lower case,
without ASCII punctuation or the articles a, an and the, and with white space collapsed.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Return the normalized form in which answers are compared."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def answer_scores(prediction: str, answers: Sequence[str]) -> tuple[float, float]:
    """Return exact match and token F1 against the best of several answers.

    Answers that are empty after normalization are ignored. A question with no other answer is
    unanswerable: only a prediction that is also empty after normalization is correct.
    """
    predicted = normalize_answer(prediction)
    accepted = [text for text in map(normalize_answer, answers) if text] or [""]
    exact = max(float(predicted == text) for text in accepted)
    return exact, max(_token_f1(predicted.split(), text.split()) for text in accepted)


def question_metrics(
    scores: NDArray[np.float64], is_answerable: NDArray[np.bool_]
) -> dict[str, float]:
    """Average the scores over questions.

    If some questions have no answer, also report the averages over each part, named after the
    official version 2.0 script: `has_answer_exact_match` (`HasAns_exact`), `has_answer_f1`
    (`HasAns_f1`) and `no_answer_accuracy` (`NoAns_exact`, which equals `NoAns_f1`). A part without
    questions is omitted. `scores` are exact match and F1, [num_questions, 2].
    """
    exact, f1 = scores.mean(axis=0).tolist()
    metrics = {"f1": f1, "exact_match": exact}
    if is_answerable.all():
        return metrics
    metrics["no_answer_accuracy"] = float(scores[~is_answerable, 0].mean())
    if is_answerable.any():
        exact, f1 = scores[is_answerable].mean(axis=0).tolist()
        metrics |= {"has_answer_f1": f1, "has_answer_exact_match": exact}
    return metrics


def _token_f1(predicted: list[str], expected: list[str]) -> float:
    if not predicted or not expected:
        return float(predicted == expected)
    shared = (Counter(predicted) & Counter(expected)).total()
    if not shared:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(expected)
    return 2 * precision * recall / (precision + recall)
