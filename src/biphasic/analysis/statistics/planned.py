"""Comparisons that a study named before its results, corrected among themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from biphasic.analysis.scores.table import Scores
from biphasic.analysis.statistics.contrast import Contrast, blocks_for, contrast
from biphasic.analysis.statistics.pair_tests import holm


class PlannedTest(NamedTuple):
    """A planned comparison.

    Attributes:
        first: The first model.
        contrast: The first model's score minus the second's.
        p_adjusted: Corrected by Holm for all planned comparisons of the study; NaN without a test.
        p_over_seeds: Over seeds alone, likewise.
        size: Number of planned comparisons.
    """

    first: str
    contrast: Contrast
    p_adjusted: float
    p_over_seeds: float
    size: int

    def contrast_of(self, first: str) -> Contrast:
        """Return the difference seen from one of the two models."""
        return self.contrast if first == self.first else -self.contrast


Key = tuple[str, str, str]
"""Dataset, first and second model."""


def planned_pairs(scores: Scores) -> Iterator[Key]:
    """Yield the planned pairs of models; a recipe counts once its runs are combined."""
    names = {model for model, _ in scores.cells}
    for planned in scores.planned:
        sides = [
            [name for name in side if name in names] for side in (planned.first, planned.second)
        ]
        if all(len(side) == 1 for side in sides):
            yield from ((dataset, sides[0][0], sides[1][0]) for dataset in planned.datasets)


def planned_tests(scores: Scores, *, with_examples: bool) -> Mapping[Key, PlannedTest]:
    """Test the planned comparisons whose scores are known."""
    found = {
        (dataset, first, second): one
        for dataset, first, second in dict.fromkeys(planned_pairs(scores))
        if (one := _test(scores, dataset, first, second, with_examples=with_examples)) is not None
    }
    tests = [*found.values()]
    size = max(sum(one.p_value is not None for one in tests), 1)
    corrected = holm(_known(one.p_value for one in tests))
    over_seeds = holm(_known(one.p_over_seeds for one in tests))
    return {
        key: PlannedTest(
            key[1], one, one.p_corrected(float(p)), one.p_corrected(float(of_seeds)), size
        )
        for (key, one), p, of_seeds in zip(found.items(), corrected, over_seeds, strict=True)
    }


def _test(
    scores: Scores, dataset: str, first: str, second: str, *, with_examples: bool
) -> Contrast | None:
    weights = {(first, dataset): 1.0, (second, dataset): -1.0}
    blocks = blocks_for(scores, weights)
    return contrast(scores, weights, blocks=blocks, with_examples=with_examples)


def _known(values: Iterable[float | None]) -> list[float]:
    return [np.nan if value is None else value for value in values]
