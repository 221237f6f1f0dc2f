"""Selects runs of a grid of learning rates and seeds; their mean, with a 95 % interval over seeds.

Runs are selected by validation scores only: each seed takes its own best rate, as in a study, or
all seeds take one rate. The difference between the two is the gain of choosing per seed.

Conventions of intervals:

- `paper` (arXiv:2507.00994): half-width 1.96 * s / sqrt(n), with s over n - 1. With five seeds it
  covers the truth about 88 times in 100.
- `standard`: Student's t with n - 1 degrees of freedom in place of 1.96.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

import scipy

from biphasic.records import Convention, ResultRecord

RunT = TypeVar("RunT")
NORMAL_QUANTILE = 1.96
METHODS: dict[Convention, str] = {  # how a convention's half-width is computed, in words
    "paper": f"{NORMAL_QUANTILE} standard errors",
    "standard": "Student's t",
}
LEVEL = 0.05  # probability of a false finding, and of an interval that misses the truth
UPPER = 1 - LEVEL / 2  # the quantile at the upper end of a two-sided interval


@dataclass(frozen=True)
class GridScore(Generic[RunT]):
    """A run of the grid, with the scores for selection and for reporting, and what made them."""

    rate: float
    seed: int
    validation: float
    test: float
    run: RunT


def grid(results: Iterable[ResultRecord], *, metric: str) -> list[GridScore[ResultRecord]]:
    """Return the runs that have a selection score and a reported score."""
    # A zero-shot run is the only one of its cell, so its test score selects nothing.
    entries = []
    for result in results:
        test = result.score("test", metric)
        validation = test if result.is_zero_shot else result.score("validation", metric)
        if test is not None and validation is not None:
            rate, seed = result.learning_rate, result.seed
            entries.append(GridScore(rate, seed, validation, test, result))
    return entries


def best_per_seed(grid: Iterable[GridScore[RunT]]) -> tuple[GridScore[RunT], ...]:
    """Return for each seed the run with the best validation score, in order of seeds."""
    # Ties go to the smaller rate. A seed without scores is absent.
    best: dict[int, GridScore[RunT]] = {}
    # Rates are in ascending order, so only a higher score replaces an earlier rate.
    for entry in sorted(grid, key=lambda entry: entry.rate):
        if entry.seed not in best or entry.validation > best[entry.seed].validation:
            best[entry.seed] = entry
    return tuple(best[seed] for seed in sorted(best))


def best_rates(grid: Iterable[GridScore[Any]]) -> dict[int, set[float]]:
    """Return for each seed the rates with its best validation score."""
    entries = [*grid]
    best = {entry.seed: entry.validation for entry in best_per_seed(entries)}
    return {
        seed: {e.rate for e in entries if e.seed == seed and e.validation == highest}
        for seed, highest in best.items()
    }


def chosen_ends(grid: Iterable[GridScore[Any]], tried: Iterable[float]) -> set[float]:
    """Return the ends of the rates tried that any seed chooses; a tie is no choice of an end."""
    rates = {*tried}
    # A single rate is not chosen, so it is no end.
    ends = {min(rates), max(rates)} if len(rates) > 1 else set[float]()
    return {end for end in ends if {end} in best_rates(grid).values()}


def over_seeds(
    grid: Iterable[GridScore[RunT]],
) -> list[GridScore[tuple[GridScore[RunT], ...]]]:
    """Return the mean of each learning rate, with its runs in order of seeds."""
    # Only rates at which every seed has a score are considered, as means over fewer seeds are not
    # comparable.
    by_rate: dict[float, list[GridScore[RunT]]] = defaultdict(list)
    for entry in sorted(grid, key=lambda entry: entry.seed):
        by_rate[entry.rate].append(entry)
    num = len({entry.seed for entries in by_rate.values() for entry in entries})
    return [
        GridScore(
            rate,
            0,
            # Exact in any order, so ties do not depend on the order of results.
            math.fsum(entry.validation for entry in entries) / num,
            math.fsum(entry.test for entry in entries) / num,
            tuple(entries),
        )
        for rate, entries in by_rate.items()
        if len(entries) == num
    ]


def best_rate(grid: Iterable[GridScore[RunT]]) -> tuple[GridScore[RunT], ...]:
    """Return the runs of the single rate with the best mean validation score, in order of seeds."""
    # Empty if no rate has a score of every seed.
    return next((best.run for best in best_per_seed(over_seeds(grid))), ())


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95 % interval."""

    mean: float
    half_width: float | None  # None with fewer than two seeds, as the spread is unknown
    num_seeds: int

    @property
    def in_points(self) -> Estimate:
        """The estimate of shares, in percent points."""
        half_width = None if self.half_width is None else 100 * self.half_width
        return Estimate(100 * self.mean, half_width, self.num_seeds)

    @property
    def low(self) -> float:
        """The interval's lower end, or the mean where there is no interval."""
        return self.mean - (self.half_width or 0.0)

    @property
    def high(self) -> float:
        """The interval's upper end, or the mean where there is no interval."""
        return self.mean + (self.half_width or 0.0)

    @property
    def ends(self) -> tuple[float | None, float | None]:
        """The interval's ends; None where there is no interval."""
        return (None, None) if self.half_width is None else (self.low, self.high)


def estimate(scores: Sequence[float], *, convention: Convention) -> Estimate | None:
    """Average scores of independent seeds; None without any."""
    # The half-width is None with fewer than two scores, never zero.
    num = len(scores)
    if num == 0:
        return None
    mean = math.fsum(scores) / num
    if num == 1:
        return Estimate(mean, None, 1)
    # n - 1 (ddof = 1), in both conventions, as in the study.
    variance = math.fsum((score - mean) ** 2 for score in scores) / (num - 1)
    quantile = interval_quantile(num, convention=convention)
    return Estimate(mean, quantile * math.sqrt(variance / num), num)


@lru_cache(maxsize=256)
def interval_quantile(num_seeds: int, *, convention: Convention) -> float:
    """Return the half-width in standard errors; needs at least two seeds."""
    if convention == "paper":
        return NORMAL_QUANTILE
    return float(scipy.special.stdtrit(num_seeds - 1, UPPER))


@lru_cache(maxsize=256)
def expected_coverage(num_seeds: int, *, convention: Convention) -> float:
    """Return the theoretical coverage of an interval for normal scores."""
    # The mean over its estimated standard error follows Student's t with n - 1 degrees of freedom.
    quantile = interval_quantile(num_seeds, convention=convention)
    return float(2 * scipy.special.stdtr(num_seeds - 1, quantile) - 1)


def as_convention(estimate: Estimate, *, source: Convention, target: Convention) -> Estimate:
    """Convert an estimate's half-width to another convention."""
    if estimate.half_width is None or source == target:
        return estimate
    ratio = interval_quantile(estimate.num_seeds, convention=target) / interval_quantile(
        estimate.num_seeds, convention=source
    )
    return Estimate(estimate.mean, estimate.half_width * ratio, estimate.num_seeds)
