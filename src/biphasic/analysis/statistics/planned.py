"""Comparisons that a study named before its results, corrected among themselves.

Those of each question are a family, and those of `compare` are another one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from biphasic.analysis.scores.table import Planned, Scores
from biphasic.analysis.statistics.contrast import Contrast, blocks_for, contrast
from biphasic.analysis.statistics.pair_tests import holm
from biphasic.facts import is_baseline


class PlannedTest(NamedTuple):
    """A planned comparison, and the number of comparisons in its family."""

    first: str
    contrast: Contrast  # the first model's score minus the second's, or a difference of differences
    p_adjusted: float  # corrected by Holm for its family; NaN without a test
    p_over_seeds: float  # over seeds alone, likewise
    size: int

    def contrast_of(self, first: str) -> Contrast:
        """Return the difference seen from one of the two models."""
        return self.contrast if first == self.first else -self.contrast


Sum = tuple[tuple[str, float], ...]  # models, the first one first, with their weights
Key = tuple[str, str, Sum]  # question, dataset and sum


def sum_of(scores: Scores, planned: Planned) -> Sum | None:
    """Return the weighted models of a comparison; None if a side has several, or no score."""
    names = {model for model, _ in (*scores.cells, *scores.baseline_cells)}
    weights: dict[str, float] = defaultdict(float)
    sides = (planned.first, planned.second, *(planned.minus or ()))
    for side, weight in zip(sides, (1.0, -1.0, -1.0, 1.0), strict=False):
        known = [name for name in side if name in names]
        if len(known) != 1:
            return None
        weights[known[0]] += weight
    return tuple((name, weight) for name, weight in weights.items() if weight)


def plan_results(scores: Scores, *, only: str | None = None) -> dict[Key, PlannedTest]:
    """Test the planned comparisons whose scores are known, or those of one family."""
    families: dict[str, dict[Key, Contrast]] = defaultdict(dict)
    sizes: Counter[str] = Counter()  # with comparisons that have no score or no test
    arms: dict[tuple[str, str], set[str]] = defaultdict(set)  # by question and dataset
    for planned in scores.planned:
        for dataset in planned.datasets:
            names = (name for name, _ in sum_of(scores, planned) or ())
            arms[planned.question, dataset].update(n for n in names if not is_baseline(n))
    for planned in scores.planned:
        if only not in {None, planned.question}:
            continue
        terms = sum_of(scores, planned)
        for dataset in planned.datasets:
            weights = {(model, dataset): weight for model, weight in terms or ()}
            blocks = blocks_for(scores, weights, family=arms[planned.question, dataset])
            one = contrast(scores, weights, blocks=blocks) if terms else None
            if one is not None and terms:
                families[planned.question][planned.question, dataset, terms] = one
            sizes[planned.question] += 1
    return {
        key: test
        for question, family in families.items()
        for key, test in _corrected(family, sizes[question]).items()
    }


def planned_tests(scores: Scores) -> Mapping[tuple[str, str, str], PlannedTest]:
    """Return the tests of pairs by dataset, first and second model, each of its first family."""
    found: dict[tuple[str, str, str], PlannedTest] = {}
    for (_, dataset, terms), test in plan_results(scores).items():
        if [weight for _, weight in terms] == [1.0, -1.0]:
            first, second = (model for model, _ in terms)
            if (dataset, second, first) not in found:
                found.setdefault((dataset, first, second), test)
    return found


def _corrected(family: Mapping[Key, Contrast], size: int) -> dict[Key, PlannedTest]:
    tests = [*family.values()]
    # None becomes NaN.
    corrected = holm(np.array([one.p_value for one in tests], np.float64), size=size)
    over_seeds = holm(np.array([one.p_over_seeds for one in tests], np.float64), size=size)
    return {
        key: PlannedTest(
            key[2][0][0], one, one.p_corrected(float(p)), one.p_corrected(float(of_seeds)), size
        )
        for (key, one), p, of_seeds in zip(family.items(), corrected, over_seeds, strict=True)
    }
