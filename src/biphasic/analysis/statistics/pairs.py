"""Tests over seeds of pairs of models."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from biphasic.analysis.estimate import NORMAL_QUANTILE, UPPER, Estimate, interval_quantile
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.statistics.paired import NO_SPREAD
from biphasic.records import Convention

_AT_ONCE = 200_000  # maximum pairs that are tested at once; with fewer than 448 models, all are


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


def all_pairs(
    scores: Scores, models: Sequence[str], dataset: str
) -> Iterator[tuple[range, PairTests]]:
    """Test every pair of models over seeds; yield those of some rows with all later ones."""
    by_seed = [scores.get(model, dataset).by_seed or {} for model in models]
    seeds = sorted({seed for row in by_seed for seed in row})
    table = np.array([[row.get(seed, np.nan) for seed in seeds] for row in by_seed], np.float64)
    table = table.reshape(len(models), len(seeds))
    estimates = [scores.get(model, dataset).estimate for model in models]
    step = max(1, _AT_ONCE // max(1, len(models)))  # of millions of pairs
    for start in range(0, len(models), step):
        rows = range(start, min(start + step, len(models)))
        tests = _paired_tests(table, rows)
        if not tests.num_seeds.all():
            is_apart = tests.num_seeds == 0
            firsts, seconds = np.nonzero(later(rows, len(models)))
            tests.p_values[is_apart] = _welch_p_values(
                estimates, firsts[is_apart] + rows.start, seconds[is_apart], scores.convention
            )
        yield rows, tests


def later(rows: range, num_models: int) -> NDArray[np.bool_]:
    """Return which models come after each row, [num_rows, num_models]."""
    return np.arange(num_models) > np.array(rows)[:, None]


def _paired_tests(table: NDArray[np.float64], rows: range) -> PairTests:
    """Test the pairs of some rows of [num_models, num_seeds] scores with all later rows."""
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
    return PairTests(p_value, mean, errors, num)


def _welch_p_values(
    estimates: Sequence[Estimate | None],
    firsts: NDArray[np.int64],
    seconds: NDArray[np.int64],
    convention: Convention,
) -> NDArray[np.float64]:
    """Return the p values of `welch` for many pairs; NaN where there is none."""
    means, errors, freedom = np.full((3, len(estimates)), np.nan)
    for place, one in enumerate(estimates):
        if one is not None and one.half_width is not None:
            means[place], freedom[place] = one.mean, one.num_seeds - 1
            errors[place] = _squared_error(one, one.half_width, convention)
    first, second = errors[firsts], errors[seconds]
    with np.errstate(divide="ignore", invalid="ignore"):
        of_sum = (first + second) ** 2 / (first**2 / freedom[firsts] + second**2 / freedom[seconds])
        t_values = np.abs(means[firsts] - means[seconds]) / np.sqrt(first + second)
        return np.where(first + second > 0, 2 * scipy.special.stdtr(of_sum, -t_values), np.nan)


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
