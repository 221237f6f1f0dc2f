"""Compares the models of a dataset with each other, and tests all differences as a family.

Seeds are paired: a seed draws the same head and the same batches for both models, so their shared
effect cancels in the difference. A difference is clear if it is larger than other seeds and other
test examples explain, corrected for its family of comparisons. Comparisons that the study named
beforehand are corrected among themselves by Holm's procedure: those of each question are a family,
and those of `compare` are another one. All others are exploratory. If only means and half-widths
are known, as in a published table, Welch's test is used.

All pairs of models are a family. Over pretraining runs that all models share, their test is that of
a randomised block design (`contrast.py`), with Tukey's correction. Otherwise, and where the spreads
of models differ, each pair is tested by itself, with Holm's correction. Both cover the test
examples, if they are known.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import combinations
from typing import ClassVar, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from biphasic.amounts import count
from biphasic.analysis.estimate import LEVEL, NORMAL_QUANTILE, UPPER, Estimate, interval_quantile
from biphasic.analysis.scores.table import DatasetInfo, Planned, Scores
from biphasic.analysis.statistics.contrast import (
    FEWEST,
    Blocks,
    Contrast,
    blocks_for,
    blocks_of,
    by_each_variance,
    contrast,
    corrected,
    holm,
)
from biphasic.analysis.statistics.crossed import NO_EXAMPLES, are_alike, pair_errors
from biphasic.analysis.statistics.paired import NO_SPREAD, range_p_values
from biphasic.facts import is_baseline
from biphasic.records import Convention

Array = NDArray[np.float64]
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


def plan_results(scores: Scores, *, only: str | None = None) -> dict[Key, Contrast]:
    """Test the planned comparisons whose scores are known, or those of one family."""
    # Each is that of the first model minus the second, or a difference of differences.
    families: dict[str, dict[Key, Contrast]] = defaultdict(dict)
    sizes: Counter[str] = Counter()  # with comparisons that have no score or no test
    # By question and dataset; in order, as the last bit of a pooled variance depends on it.
    arms: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for planned in scores.planned:
        for dataset in planned.datasets:
            names = (name for name, _ in sum_of(scores, planned) or ())
            own = dict.fromkeys(name for name in names if not is_baseline(name))
            arms[planned.question, dataset].update(own)
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
        for key, test in zip(
            family, corrected([*family.values()], size=sizes[question]), strict=True
        )
        if test is not None
    }


def planned_tests(scores: Scores) -> Mapping[tuple[str, str, str], Contrast]:
    """Return the tests of pairs by dataset, first and second model, each of its first family."""
    found: dict[tuple[str, str, str], Contrast] = {}
    for (_, dataset, terms), test in plan_results(scores).items():
        if [weight for _, weight in terms] == [1.0, -1.0]:
            first, second = (model for model, _ in terms)
            if (dataset, second, first) not in found:
                found.setdefault((dataset, first, second), test)
    return found


@dataclass(frozen=True)
class ModelComparison(Contrast):
    """Two models on a dataset: the score of the first minus that of the second."""

    # Without a common seed, it is that of their means. A zero-shot score has one run: it is tested
    # over test examples.
    first: str = ""
    second: str = ""
    dataset: str = ""
    is_planned: bool = False  # whether the study named it beforehand; all others are exploratory
    unit: str = ""  # what the pairs are, as in `Scores`
    example: str = ""  # as in `DatasetInfo`
    # Whether a model has seeds that the other lacks: the mean is not that of the two means.
    is_of_common_seeds: bool = False
    is_at_end: bool = False  # whether a score is at an end of the rates tried, so it is provisional

    @property
    def num_pairs(self) -> int:
        """Seeds that both models have; 0 if not paired."""
        return len(self.by_seed)

    @property
    def examples_text(self) -> str:
        """Number of test examples, and of their clusters where there are fewer."""
        num, text = self.num_clusters, count(self.num_examples, self.example)
        return f"{text} in {count(num, 'cluster')}" if num < self.num_examples else text

    @property
    def is_clear_over_seeds(self) -> bool:
        """Whether it would be clear without the variance over test examples."""
        p_value = self.p_adjusted_over_seeds
        return p_value is not None and p_value <= LEVEL and self.mean != 0

    @property
    def is_level(self) -> bool:
        """Whether both models have the same mean, but for rounding."""
        return abs(self.mean) <= NO_SPREAD

    @property
    def has_alike_examples(self) -> bool:
        """Whether every test example gives the same difference."""
        return self.num_examples > 0 and bool(are_alike(self.mean, self.example_error))


def welch(first: Estimate, second: Estimate, convention: Convention) -> Contrast:
    """Compare two means with intervals (Welch 1947)."""
    mean, widths = first.mean - second.mean, (first.half_width, second.half_width)
    untested = Contrast(mean, {}, (), 0.0, 0, 0, None, None, None, is_pooled=False, missing="")
    if None in widths:
        return untested
    seeds = (first.num_seeds, second.num_seeds)
    parts = [
        (width or 0.0) ** 2 / interval_quantile(num, convention=convention) ** 2
        for width, num in zip(widths, seeds, strict=True)
    ]
    error = math.sqrt(sum(parts))
    if error == 0:
        return untested
    freedom = sum(parts) ** 2 / sum(p**2 / (n - 1) for p, n in zip(parts, seeds, strict=True))
    is_paper = convention == "paper"
    quantile = NORMAL_QUANTILE if is_paper else float(scipy.special.stdtrit(freedom, UPPER))
    p_value = float(2 * scipy.special.stdtr(freedom, -abs(mean) / error))
    return replace(untested, p_value=p_value, half_width=quantile * error)


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
    # Planned comparisons on the dataset, by names of both models.
    planned: Mapping[tuple[str, str], Contrast]

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
        pairs = (pair for pair in self.planned if {*pair} <= self._places.keys())
        excluded = [self._place(*pair) for pair in pairs]
        return corrected_pairs(
            self.scores,
            self.order,
            self.dataset,
            self.blocks,
            num_arms=self.num_arms,
            excluded=excluded,
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
        scores, dataset = self.scores, self.dataset.name
        sides = [scores.get(name, dataset) for name in (first, second)]
        one, other = (side.estimate for side in sides)
        if one is None or other is None:
            return None
        plan, opposite = (self.planned.get(pair) for pair in ((first, second), (second, first)))
        found = plan or (opposite and -opposite)
        if found is None:
            if self.is_too_large:
                return None
            weights = {(first, dataset): 1.0, (second, dataset): -1.0}
            found = contrast(scores, weights, blocks=[self.blocks] if self.blocks else [])
            if found is None:
                missing = f"no {scores.unit}s in common"
                found = replace(welch(one, other, scores.convention), missing=missing)
            place = self._place(first, second)
            p_value, over_seeds = (float(p[place]) for p in self.corrected[:2])
            found = replace(
                found,
                p_adjusted=None if math.isnan(p_value) else p_value,
                p_adjusted_over_seeds=None if math.isnan(over_seeds) else over_seeds,
                family_size=self.size,
                num_arms=self.num_arms if self.uses_blocks else None,
            )
        num = len(found.by_seed)
        return ModelComparison(
            **{field.name: getattr(found, field.name) for field in fields(Contrast)},
            first=first,
            second=second,
            dataset=dataset,
            is_planned=bool(plan or opposite),
            unit=scores.unit,
            example=self.dataset.example,
            is_at_end=any(side.is_at_end for side in sides),
            is_of_common_seeds=0 < num < max(side.num_seeds for side in sides),
        )

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.order)}

    def _place(self, first: str, second: str) -> int:
        """Return the index of a pair in `itertools.combinations`."""
        low, high = sorted((self._places[first], self._places[second]))
        return low * len(self.order) - low * (low + 1) // 2 + high - low - 1


def families_of(scores: Scores) -> dict[str, Family]:
    """Test all pairs of models on each dataset and average."""
    tests = planned_tests(scores)
    return {one.name: family_of(scores, one.name, tests=tests) for one in scores.datasets}


def family_of(
    scores: Scores,
    dataset: str,
    *,
    models: Sequence[str] | None = None,
    tests: Mapping[tuple[str, str, str], Contrast] | None = None,
) -> Family:
    """Test all pairs of models on a dataset and correct the p values together."""
    # `tests` are those of `planned_tests`.
    order = tuple(ranked(scores, dataset, models=models))
    every = planned_tests(scores) if tests is None else tests
    asked = (model.name for model in scores.models if models is None or model.name in models)
    num_arms = sum((name, dataset) in scores.cells for name in asked)
    planned = {key[1:]: test for key, test in every.items() if key[0] == dataset}
    blocks = blocks_of(scores, order, dataset)
    return Family(scores, scores.dataset(dataset), order, num_arms, blocks, planned)


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


class Corrected(NamedTuple):
    """P values of all exploratory pairs, in the order of `itertools.combinations`."""

    p_adjusted: Array  # NaN without a test
    p_over_seeds: Array  # the same over seeds alone
    size: int  # number of pairs that are corrected for


def corrected_pairs(
    scores: Scores,
    models: Sequence[str],
    dataset: DatasetInfo,
    blocks: Blocks | None,
    *,
    num_arms: int,
    excluded: Sequence[int] = (),
) -> Corrected:
    """Test all pairs of models on a dataset, and correct the p values of those not excluded."""
    # `blocks` is the models' pooled variance; `num_arms` counts those without a score yet, too.
    size = max(math.comb(num_arms, 2) - len(excluded), 1)
    without_seeds = dataset.is_zero_shot and not scores.is_replicated
    known = NO_EXAMPLES if scores.examples is None else pair_errors(scores, models, dataset)
    if not without_seeds:  # where examples are unknown, seeds decide
        known = replace(
            known, examples=np.nan_to_num(known.examples), shared=np.nan_to_num(known.shared)
        )
    means, own, num = pair_differences(scores, models, dataset.name)
    alone, *pooled = by_each_variance(means, own, num, known, blocks=[blocks] if blocks else [])
    has_spread = (num > 1) & (own * num > NO_SPREAD**2)
    over_seeds = np.where(has_spread, alone.p_over_seeds, np.nan)
    estimates = [*combinations([scores.get(name, dataset.name).estimate for name in models], 2)]
    for place in np.flatnonzero(num == 0):  # without a common seed, means alone are compared
        one, other = estimates[place]
        p_value = one and other and welch(one, other, scores.convention).p_value
        over_seeds[place] = np.nan if p_value is None else p_value
    values = np.where(np.isnan(alone.p_value), over_seeds, alone.p_value)
    if without_seeds:
        values[are_alike(means, np.sqrt(known.examples))] = np.nan
    else:
        values[np.isnan(over_seeds)] = np.nan

    def by_holm(values: Array) -> Array:
        kept = values.copy()
        kept[[*excluded]] = np.nan
        return np.minimum(kept * size, 1.0) if without_seeds else holm(kept, size=size)

    if blocks is None:
        return Corrected(by_holm(values), by_holm(over_seeds), size)
    # Tukey's correction. The pooled variance is too small for a pair whose spread is larger than it
    # seems, so no p value is below that of the pair's own t test.
    [by_blocks] = pooled
    joint, over_runs = (
        range_p_values(np.sqrt(2) * np.abs(means) / error, num_arms, freedom)
        for error, freedom in (by_blocks[:2], by_blocks[2:4])
    )
    of_seeds = np.maximum(over_runs, over_seeds)
    adjusted = np.maximum(of_seeds, joint)
    if blocks.are_spreads_equal:
        return Corrected(adjusted, of_seeds, size)
    adjusted = np.maximum(adjusted, by_holm(np.maximum(by_blocks.p_value, values)))
    return Corrected(adjusted, np.maximum(of_seeds, by_holm(over_seeds)), size)


def pair_differences(
    scores: Scores, models: Sequence[str], dataset: str
) -> tuple[Array, Array, Array]:
    """Return means of paired seeds, their squared standard errors over seeds, and their number."""
    by_seed = [scores.get(model, dataset).by_seed or {} for model in models]
    seeds = sorted({seed for row in by_seed for seed in row})
    table = np.array([[row.get(seed, np.nan) for seed in seeds] for row in by_seed], np.float64)
    firsts, seconds = np.triu_indices(len(models), k=1)
    differences = table.reshape(len(models), len(seeds))
    differences = differences[firsts] - differences[seconds]
    is_there = ~np.isnan(differences)
    num = is_there.sum(axis=1).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = np.where(is_there, differences, 0.0).sum(axis=1) / num
        squares = np.where(is_there, (differences - means[:, None]) ** 2, 0.0).sum(axis=1)
        return means, np.where(num > 1, squares / (num - 1) / num, 0.0), num
