"""Scores and seed tests of pairs of models, for one pair or all pairs at once."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import scipy
from numpy.typing import NDArray

from biphasic.analysis.estimate import NORMAL_QUANTILE, UPPER, Estimate, estimate, interval_quantile
from biphasic.analysis.scores.table import Score, Scores
from biphasic.analysis.statistics.paired import NO_SPREAD, deviation
from biphasic.records import Convention

_AT_ONCE = 200_000
"""Maximum pairs whose differences are in memory at once."""


@dataclass(frozen=True)
class Pair:
    """Two models' scores on a dataset.

    Attributes:
        by_seed: Differences by common seed.
        difference: First minus second.
        p_value: By Student's paired t test, or Welch's.
    """

    by_seed: Mapping[int, float]
    difference: Estimate
    p_value: float | None


@dataclass(frozen=True)
class PairTests:
    """Tests over seeds of every pair of models, in the order of `itertools.combinations`.

    Attributes:
        p_values: As in `Pair`; NaN where there is none. [num_pairs]
        means: Mean differences of paired seeds, in percent points; NaN without common seeds.
        squared_errors: Squared standard errors of these means over seeds; 0 with one seed.
        num_seeds: Common seeds.
    """

    p_values: NDArray[np.float64]
    means: NDArray[np.float64]
    squared_errors: NDArray[np.float64]
    num_seeds: NDArray[np.float64]


def pair_of(scores: Scores, first: str, second: str, dataset: str) -> Pair | None:
    """Return two models' scores on a dataset; None if one of them has none."""
    one, other = scores.get(first, dataset), scores.get(second, dataset)
    if one.estimate is None or other.estimate is None:
        return None
    by_seed = _differences(one, other)
    if by_seed:
        difference = estimate([*by_seed.values()], convention=scores.convention)
        p_value = _paired_p_value([*by_seed.values()])
    else:
        difference, p_value = _welch(one.estimate, other.estimate, convention=scores.convention)
    assert difference is not None  # noqa: S101 - there is a common seed
    return Pair(by_seed, difference, p_value)


def all_pairs(scores: Scores, models: Sequence[str], dataset: str) -> PairTests:
    """Test every pair of models over seeds.

    All pairs are computed at once, since their number grows with the square of the models.
    """
    num_pairs = len(models) * (len(models) - 1) // 2
    # Filled in place: a study of thousands of arms has millions of pairs.
    found, end = np.empty((4, num_pairs)), 0
    for part in _paired_tests(_by_seed_table(scores, models, dataset)):
        found[:, end : end + part.shape[1]] = part
        end += part.shape[1]
    tests = PairTests(*found)
    if tests.num_seeds.all():
        return tests
    for index, (first, second) in enumerate(combinations(models, 2)):
        if not tests.num_seeds[index]:  # nothing is paired
            pair = pair_of(scores, first, second, dataset)
            if pair is not None and pair.p_value is not None:
                tests.p_values[index] = pair.p_value
    return tests


def _by_seed_table(scores: Scores, models: Sequence[str], dataset: str) -> NDArray[np.float64]:
    """Return scores as [num_models, num_seeds], NaN where a seed is missing."""
    by_seed = [scores.get(model, dataset).by_seed or {} for model in models]
    seeds = sorted({seed for row in by_seed for seed in row})
    table = [[row.get(seed, np.nan) for seed in seeds] for row in by_seed]
    return np.array(table, dtype=np.float64).reshape(len(models), len(seeds))


def _paired_tests(table: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
    """Yield the fields of `PairTests` for pairs of rows, [4, num_pairs] at a time."""
    step = max(1, _AT_ONCE // max(1, len(table)))
    for start in range(0, len(table) - 1, step):
        rows = range(start, min(start + step, len(table) - 1))
        differences = np.concatenate([table[row] - table[row + 1 :] for row in rows])
        is_there = ~np.isnan(differences)
        num = is_there.sum(axis=1).astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.where(is_there, differences, 0.0).sum(axis=1) / num
            squares = np.where(is_there, (differences - mean[:, None]) ** 2, 0.0).sum(axis=1)
            spread = np.sqrt(squares / (num - 1))
            t_value = np.abs(mean) / spread * np.sqrt(num)
            p_value = 2 * scipy.special.stdtr(num - 1, -t_value)
            errors = np.where(num > 1, squares / (num - 1) / num, 0.0)
        p_value[(num < 2) | (spread <= NO_SPREAD)] = np.nan
        yield np.stack([p_value, mean, errors, num])


def _differences(one: Score, other: Score) -> dict[int, float]:
    if one.by_seed is None or other.by_seed is None:
        return {}
    return {
        seed: score - other.by_seed[seed]
        for seed, score in sorted(one.by_seed.items())
        if seed in other.by_seed
    }


def _paired_p_value(differences: Sequence[float]) -> float | None:
    num, spread = len(differences), deviation(differences)
    if not spread:
        return None
    t_value = statistics.fmean(differences) / spread * math.sqrt(num)
    return float(2 * scipy.special.stdtr(num - 1, -abs(t_value)))


def _welch(
    first: Estimate, second: Estimate, *, convention: Convention
) -> tuple[Estimate, float | None]:
    """Compare two means with intervals (Welch 1947); the seeds are not paired."""
    mean, num = first.mean - second.mean, min(first.num_seeds, second.num_seeds)
    if first.half_width is None or second.half_width is None:
        return Estimate(mean, None, num), None
    parts = [
        (score.half_width or 0.0) ** 2
        / interval_quantile(score.num_seeds, convention=convention) ** 2
        for score in (first, second)
    ]
    error = math.sqrt(sum(parts))
    if error == 0:
        return Estimate(mean, 0.0, num), None
    seeds = (first.num_seeds, second.num_seeds)
    freedom = sum(parts) ** 2 / sum(p**2 / (n - 1) for p, n in zip(parts, seeds, strict=True))
    is_paper = convention == "paper"
    quantile = NORMAL_QUANTILE if is_paper else float(scipy.special.stdtrit(freedom, UPPER))
    p_value = float(2 * scipy.special.stdtr(freedom, -abs(mean) / error))
    return Estimate(mean, quantile * error, num), p_value
