"""Tests which of two values is higher, if scores of single seeds are known.

Two models on one dataset get the verdict of the report: the same test, corrected for all pairs of
models there. Values computed from several scores, such as differences between models, are tested
the same way, over seeds and test examples, and corrected for the comparisons of their check.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Literal

import numpy as np

from biphasic.analysis.claims.table import Term
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.statistics.compare import family_of
from biphasic.analysis.statistics.crossed import CrossedErrors, joint_p_values
from biphasic.analysis.statistics.example_compare import contrast_errors
from biphasic.analysis.statistics.paired import LEVEL, deviation
from biphasic.errors import DataError


class Differences:
    """Tests of a table of scores; each family of models on a dataset is tested once."""

    def __init__(self, scores: Scores) -> None:
        self._scores = scores
        self._family = cache(partial(family_of, scores))

    def relation(
        self, value: Sequence[Term], other: Sequence[Term], num_comparisons: int
    ) -> Literal["higher", "lower"] | None:
        """Return how one value relates to another; None if the data cannot decide.

        `num_comparisons` is the number of comparisons made together, if the values are not plain
        scores.
        """
        if len(value) == len(other) == 1 and value[0].dataset == other[0].dataset:
            family = self._family(value[0].dataset)
            comparison = family.compare(value[0].model, other[0].model)
            if comparison is None or not comparison.is_clear:
                return None
            return "higher" if comparison.verdict == "higher" else "lower"
        weights: dict[tuple[str, str], float] = defaultdict(float)
        for sign, terms in ((1, value), (-1, other)):
            for term in terms:
                weights[term.model, term.dataset] += sign * term.weight
        mean, p_value = contrast(self._scores, weights)
        if p_value is None or p_value * num_comparisons > LEVEL or mean == 0:
            return None
        return "higher" if mean > 0 else "lower"


def contrast(
    scores: Scores, weights: Mapping[tuple[str, str], float]
) -> tuple[float, float | None]:
    """Return a weighted sum of scores and its p value against zero; None without a spread."""
    parts = [(weight, scores.get(*key).by_seed or {}) for key, weight in weights.items()]
    seeds = sorted(set.intersection(*(set(by_seed) for _, by_seed in parts)))
    values = [math.fsum(weight * by_seed[seed] for weight, by_seed in parts) for seed in seeds]
    spread = deviation(values)
    if not spread:
        return 0.0, None
    mean = math.fsum(values) / len(values)
    try:
        errors = contrast_errors(scores, weights, seeds)
    except DataError:
        errors = CrossedErrors(np.zeros(1), np.zeros(1), 0)
    squared = np.array([spread**2 / len(values)])
    return mean, float(joint_p_values(mean, squared, len(values), errors)[0])
