"""Compares the models of a dataset with each other, and tests all differences as a family.

Seeds are paired: a seed draws the same head and the same batches for both models, so their shared
effect cancels in the difference. A difference is clear if it is larger than other seeds and other
test examples explain, corrected for its family of comparisons (`pair_tests.py`). Comparisons that
the study named beforehand are corrected among themselves: those of each question are a family, and
those of `compare` are another one. All others are exploratory. If only means and half-widths are
known, as in a published table, Welch's test is used.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from biphasic.amounts import count
from biphasic.analysis.estimate import LEVEL, Estimate, estimate
from biphasic.analysis.scores.table import DatasetInfo, Planned, Scores
from biphasic.analysis.statistics.contrast import (
    FEWEST,
    Blocks,
    Contrast,
    blocks_for,
    blocks_of,
    contrast,
)
from biphasic.analysis.statistics.crossed import are_alike
from biphasic.analysis.statistics.pair_tests import Corrected, corrected_pairs, holm, welch
from biphasic.analysis.statistics.paired import NO_SPREAD
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


Verdict = Literal["higher", "lower", "undecided", "unknown"]


@dataclass(frozen=True)
class ModelComparison:
    """Two models on a dataset."""

    first: str
    second: str
    dataset: str
    # First minus second, in percentage points, over seeds, by the scores' convention.
    difference: Estimate
    contrast: Contrast | None  # the test of paired seeds; None if no seed is common
    # Two-sided, of the test that decides, uncorrected; None without two seeds each, or if the
    # pairs' differences have no spread. Zero-shot scores have no seeds: theirs is over test
    # examples.
    p_value: float | None
    p_adjusted: float | None  # corrected for the family; `p_over_seeds` likewise, over seeds alone
    p_over_seeds: float | None
    family_size: int
    num_arms: int | None  # number of arms whose pairs Tukey's correction covers; None for Holm's
    is_planned: bool  # whether the study named it beforehand; all others are exploratory
    unit: str  # what the pairs are, as in `Scores`
    example: str  # as in `DatasetInfo`
    # Whether a model has seeds that the other lacks: the difference is not that of the two means.
    is_of_common_seeds: bool
    is_at_end: bool  # whether a score is at an end of the rates tried, so this is provisional

    @property
    def differences(self) -> tuple[float, ...]:
        """By seed that both have, in percentage points; empty if not paired."""
        return () if self.contrast is None else tuple(self.contrast.by_seed.values())

    @property
    def num_pairs(self) -> int:
        """Seeds that both models have; 0 if not paired."""
        return len(self.differences)

    @property
    def num_examples(self) -> int:
        """Test examples that the interval and the test cover; 0 if they are unknown."""
        return 0 if self.contrast is None else self.contrast.num_examples

    @property
    def num_clusters(self) -> int:
        """Clusters of these examples, or the examples if they have none."""
        return 0 if self.contrast is None else self.contrast.num_clusters

    @property
    def examples_text(self) -> str:
        """Number of test examples, and of their clusters where there are fewer."""
        if self.contrast is None:
            return ""
        num, text = self.num_clusters, count(self.num_examples, self.example)
        return f"{text} in {count(num, 'cluster')}" if num < self.num_examples else text

    @property
    def uses_blocks(self) -> bool:
        """Whether the test pools the variance of all arms."""
        return self.contrast is not None and self.contrast.is_pooled

    @property
    def interval(self) -> tuple[float, float] | None:
        """Ends of the 95 % interval by the test that decides, not corrected; None if unknown."""
        if self.contrast is not None:
            return self.contrast.interval
        return None if self.p_value is None else (self.difference.low, self.difference.high)

    @cached_property
    def detectable(self) -> float | None:
        """Difference that would be clear with 80 % power, in percentage points."""
        if self.contrast is None:
            return None
        return self.contrast.detectable(self.family_size, num_arms=self.num_arms)

    @property
    def verdict(self) -> Verdict:
        """Whether the first is higher: `undecided` if not clear, `unknown` if untested."""
        if self.p_adjusted is None:
            return "unknown"
        if self.p_adjusted > LEVEL or self.difference.mean == 0:
            return "undecided"
        return "higher" if self.difference.mean > 0 else "lower"

    @property
    def is_clear(self) -> bool:
        """Return whether the difference is clear."""
        return self.verdict in {"higher", "lower"}

    @property
    def is_clear_over_seeds(self) -> bool:
        """Return whether it would be clear without the variance over test examples."""
        is_clear = self.p_over_seeds is not None and self.p_over_seeds <= LEVEL
        return is_clear and self.difference.mean != 0

    @property
    def is_level(self) -> bool:
        """Return whether both models have the same mean, but for rounding."""
        return abs(self.difference.mean) <= NO_SPREAD

    @property
    def has_alike_examples(self) -> bool:
        """Return whether every test example gives the same difference."""
        one = self.contrast
        return (
            one is not None
            and one.num_examples > 0
            and bool(are_alike(one.mean, one.example_error))
        )


MOST_ARMS = 300  # of a family of all pairs; of more, planned comparisons alone are tested


@dataclass(frozen=True, eq=False)
class Family:
    """All pairs of some models on a dataset, whose p values are corrected together."""

    most: ClassVar = MOST_ARMS
    fewest: ClassVar = FEWEST  # whose variance is pooled

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
            example=self.dataset.example,
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
