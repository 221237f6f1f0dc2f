"""Tests over seeds of pairs of models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from biphasic.analysis.estimate import NORMAL_QUANTILE, UPPER, Estimate, interval_quantile
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.statistics.paired import NO_SPREAD
from biphasic.records import Convention


@dataclass(frozen=True)
class PairTests:
    """Tests over seeds of pairs of models, in the order of `itertools.combinations`."""

    # By Student's paired t test, or Welch's; NaN where there is none. [num_pairs]
    p_values: NDArray[np.float64]
    # Mean differences of paired seeds, in percent points; NaN without common seeds.
    means: NDArray[np.float64]
    # Squared standard errors of these means over seeds; 0 with one seed.
    squared_errors: NDArray[np.float64]
    num_seeds: NDArray[np.float64]  # common seeds


def all_pairs(scores: Scores, models: Sequence[str], dataset: str) -> PairTests:
    """Test every pair of models over seeds."""
    by_seed = [scores.get(model, dataset).by_seed or {} for model in models]
    seeds = sorted({seed for row in by_seed for seed in row})
    table = np.array([[row.get(seed, np.nan) for seed in seeds] for row in by_seed], np.float64)
    table = table.reshape(len(models), len(seeds))
    firsts, seconds = np.triu_indices(len(models), k=1)
    tests = _paired_tests(table[firsts] - table[seconds])
    estimates = [scores.get(model, dataset).estimate for model in models]
    for place in np.flatnonzero(tests.num_seeds == 0):
        one, other = estimates[firsts[place]], estimates[seconds[place]]
        if one is not None and other is not None:
            _, p_value = welch(one, other, scores.convention)
            tests.p_values[place] = np.nan if p_value is None else p_value
    return tests


def _paired_tests(differences: NDArray[np.float64]) -> PairTests:
    """Test [num_pairs, num_seeds] differences, NaN where a seed is not common."""
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
    return PairTests(p_value, mean, errors, num)


def welch(
    first: Estimate, second: Estimate, convention: Convention
) -> tuple[Estimate, float | None]:
    """Compare two means with intervals (Welch 1947): the difference, and its p value if known."""
    mean, num = first.mean - second.mean, min(first.num_seeds, second.num_seeds)
    if first.half_width is None or second.half_width is None:
        return Estimate(mean, None, num), None
    parts = [
        _squared_error(first, first.half_width, convention),
        _squared_error(second, second.half_width, convention),
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


def _squared_error(one: Estimate, half_width: float, convention: Convention) -> float:
    """Return the squared standard error of a mean from its half-width."""
    return half_width**2 / interval_quantile(one.num_seeds, convention=convention) ** 2
