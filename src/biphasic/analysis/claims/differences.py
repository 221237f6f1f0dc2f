"""Tests which of two values is higher, if scores of single seeds are known.

Two models on one dataset get the verdict of the report: the same test, corrected for all pairs of
models there. Values computed from several scores, such as differences between models, are tested
the same way, over seeds and test examples, and corrected for the comparisons of their check.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cache, partial
from typing import Literal

from biphasic.analysis.claims.table import Term
from biphasic.analysis.estimate import LEVEL
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.statistics.compare import family_of
from biphasic.analysis.statistics.contrast import blocks_for, contrast


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
            pair = self._family(value[0].dataset).compare(value[0].model, other[0].model)
            if pair is None or not pair.is_clear:
                return None
            return "higher" if pair.verdict == "higher" else "lower"
        weights: dict[tuple[str, str], float] = defaultdict(float)
        for sign, terms in ((1, value), (-1, other)):
            for term in terms:
                weights[term.model, term.dataset] += sign * term.weight
        one = contrast(self._scores, weights, blocks=blocks_for(self._scores, weights))
        if one is None or one.p_value is None or one.mean == 0:
            return None
        is_clear = one.p_corrected(one.p_value * num_comparisons) <= LEVEL
        return ("higher" if one.mean > 0 else "lower") if is_clear else None
