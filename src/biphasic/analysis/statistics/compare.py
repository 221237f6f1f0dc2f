"""Compares the models of a dataset with each other, and tests all differences as a family.

Seeds are paired: a seed draws the same head and the same batches for both models, so their shared
effect cancels in the difference. A difference is clear if it is larger than other seeds and other
test examples explain, corrected for its family of comparisons (`pair_tests.py`). Comparisons that
the study named beforehand are a family of their own (`planned.py`); all others are exploratory. If
only means and half-widths are known, as in a published table, Welch's test is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from biphasic.analysis.estimate import estimate
from biphasic.analysis.scores.table import DatasetInfo, Scores
from biphasic.analysis.statistics.blocks import Blocks, blocks_of
from biphasic.analysis.statistics.comparison import ModelComparison
from biphasic.analysis.statistics.contrast import contrast
from biphasic.analysis.statistics.pair_tests import Corrected, corrected_pairs
from biphasic.analysis.statistics.pairs import welch
from biphasic.analysis.statistics.planned import PlannedTest, planned_tests

MOST_ARMS = 300  # of a family of all pairs; of more, planned comparisons alone are tested


@dataclass(frozen=True, eq=False)
class Family:
    """All pairs of some models on a dataset, whose p values are corrected together."""

    scores: Scores
    dataset: DatasetInfo
    order: tuple[str, ...]  # names of the models that have a score, best first
    num_arms: int  # models that have a score or are to have one
    blocks: Blocks | None  # the pooled variance over runs; None if it does not apply
    apart: tuple[int, ...]  # places of the planned pairs among all pairs
    # Planned comparisons on the dataset, by names of both models.
    planned: Mapping[tuple[str, str], PlannedTest]

    @property
    def uses_blocks(self) -> bool:
        """Return whether the pooled variance decides alone."""
        return self.blocks is not None and self.blocks.are_spreads_equal

    @property
    def is_too_large(self) -> bool:
        """Return whether only planned comparisons are tested."""
        return self.num_arms > MOST_ARMS

    @cached_property
    def corrected(self) -> Corrected:
        """The p values of all exploratory pairs."""
        return corrected_pairs(
            self.scores,
            self.order,
            self.dataset,
            self.blocks,
            num_arms=self.num_arms,
            excluded=self.apart,
        )

    @property
    def size(self) -> int:
        """Number of pairs that are corrected for: all by Tukey, the exploratory ones by Holm."""
        # With those that have no score or no test yet: a score that comes later must not take back
        # that a difference is clear.
        return math.comb(self.num_arms, 2) if self.uses_blocks else self.corrected.size

    @cached_property
    def with_best(self) -> tuple[ModelComparison, ...]:
        """The best model against every other, in order of their means."""
        others = () if self.is_too_large else self.order[1:]
        comparisons = (self.compare(self.order[0], other) for other in others)
        return tuple(comparison for comparison in comparisons if comparison is not None)

    @property
    def has_clear_best(self) -> bool:
        """Return whether the best model is clearly ahead of every other."""
        return bool(self.with_best) and all(one.is_clear for one in self.with_best)

    @cached_property
    def of_plan(self) -> tuple[ModelComparison, ...]:
        """The planned comparisons, in the study's order."""
        comparisons = (self.compare(first, second) for first, second in self.planned)
        return tuple(comparison for comparison in comparisons if comparison is not None)

    def compare(self, first: str, second: str) -> ModelComparison | None:
        """Compare two models; None if one has no score, or is one of too many to be tested."""
        sides = [self.scores.get(name, self.dataset.name).estimate for name in (first, second)]
        if sides[0] is None or sides[1] is None:
            return None
        plan = self.planned.get((first, second)) or self.planned.get((second, first))
        if plan is None:
            if self.is_too_large:
                return None
            place = _place(self._places[first], self._places[second], len(self.order))
            adjusted, over_seeds = (float(p[place]) for p in self.corrected[:2])
            weights = {(first, self.dataset.name): 1.0, (second, self.dataset.name): -1.0}
            one = contrast(self.scores, weights, blocks=[self.blocks] if self.blocks else [])
        else:
            adjusted, over_seeds = plan.p_adjusted, plan.p_over_seeds
            one = plan.contrast_of(first)
        if one is None:  # no common seed
            difference, p_value = welch(sides[0], sides[1], self.scores.convention)
        else:
            difference = estimate([*one.by_seed.values()], convention=self.scores.convention)
            p_value = one.p_value
        assert difference is not None  # noqa: S101 - there is a common seed
        return ModelComparison(
            first=first,
            second=second,
            dataset=self.dataset.name,
            difference=difference,
            contrast=one,
            p_value=p_value,
            p_adjusted=None if np.isnan(adjusted) else adjusted,
            p_over_seeds=None if np.isnan(over_seeds) else over_seeds,
            family_size=self.size if plan is None else plan.size,
            num_arms=self.num_arms if plan is None and self.uses_blocks else None,
            is_planned=plan is not None,
            unit=self.scores.unit,
            is_at_end=any(
                self.scores.get(name, self.dataset.name).is_at_end for name in (first, second)
            ),
            is_of_common_seeds=one is not None
            and max(sides[0].num_seeds, sides[1].num_seeds) > len(one.by_seed),
        )

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.order)}


def family_of(scores: Scores, dataset: str, *, models: Sequence[str] | None = None) -> Family:
    """Test all pairs of models on a dataset and correct the p values together."""
    order = tuple(ranked(scores, dataset, models=models))
    places = {name: place for place, name in enumerate(order)}
    asked = (model.name for model in scores.models if models is None or model.name in models)
    num_arms = sum((name, dataset) in scores.cells for name in asked)
    every = planned_tests(scores)
    planned = {key[1:]: test for key, test in every.items() if key[0] == dataset}
    apart = tuple(
        _place(places[first], places[second], len(order))
        for first, second in planned
        if first in places and second in places
    )
    blocks = blocks_of(scores, order, dataset)
    return Family(scores, scores.dataset(dataset), order, num_arms, blocks, apart, planned)


def _place(first: int, second: int, num_models: int) -> int:
    """Return the index of a pair in `itertools.combinations`."""
    low, high = sorted((first, second))
    return low * num_models - low * (low + 1) // 2 + high - low - 1


def ranked(scores: Scores, dataset: str, *, models: Sequence[str] | None = None) -> list[str]:
    """Return the names of the models that have a score, best first; ties keep their order."""
    means = scores.means(dataset)
    asked = means if models is None else set(models)
    return sorted((name for name in means if name in asked), key=lambda name: -means[name])


def unscored(scores: Scores, dataset: str) -> list[str]:
    """Return the names of the models without a score, which no comparison includes."""
    scored = scores.means(dataset)
    return [model.name for model in scores.models if model.name not in scored]


def indistinguishable(
    scores: Scores, dataset: str, *, models: Sequence[str] | None = None
) -> set[str]:
    """Return the models that are not clearly below the best, without the best itself."""
    # With convention `paper`, their interval overlaps with the best one's; otherwise their
    # comparison with it is not clear. Models that cannot be tested are included: they have no
    # interval, or are too many.
    order = ranked(scores, dataset, models=models)
    if not order:
        return set()
    if scores.convention != "paper":
        comparisons = family_of(scores, dataset, models=models).with_best
        return {*order[1:]} - {one.second for one in comparisons if one.is_clear}
    found = {name: scores.cells[name, dataset].estimate for name in order}
    best = found.pop(order[0])
    if best is None or best.half_width is None:
        return set(found)
    return {
        name
        for name, other in found.items()
        if other is None or other.half_width is None or best.low <= other.high
    }
