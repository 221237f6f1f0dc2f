"""Tests of all pairs of models on a dataset, and their correction as a family.

Over pretraining runs that all models share, the test is that of a randomised block design
(`contrast.py`), with Tukey's correction. Otherwise, and where the spreads of models differ, each
pair is tested by itself, with Holm's correction. Both cover the test examples, if they are known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from biphasic.analysis.estimate import NORMAL_QUANTILE, UPPER, Estimate, interval_quantile
from biphasic.analysis.scores.table import DatasetInfo, Scores
from biphasic.analysis.statistics.contrast import Blocks
from biphasic.analysis.statistics.crossed import (
    NO_EXAMPLES,
    CrossedErrors,
    are_alike,
    joint_errors,
    joint_p_values,
    pair_errors,
    seed_freedom,
    t_values,
)
from biphasic.analysis.statistics.paired import NO_SPREAD, range_p_values
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


Array = NDArray[np.float64]


class PooledErrors(NamedTuple):
    """Squared standard errors of differences by the pooled variance, [num_pairs]."""

    over_runs: Array
    joint: Array  # over runs and test examples
    freedom: Array  # of `joint`


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
    alone = all_pairs(scores, models, dataset.name)
    known = NO_EXAMPLES if scores.examples is None else pair_errors(scores, models, dataset)
    if not without_seeds:  # where examples are unknown, seeds decide
        known = replace(
            known, examples=np.nan_to_num(known.examples), shared=np.nan_to_num(known.shared)
        )
    p_values, pooled = _p_values(alone, known, without_seeds=without_seeds), None
    if blocks is not None:
        p_values, pooled = _by_blocks(p_values, alone, blocks, known)

    def by_holm(values: Array) -> Array:
        kept = values.copy()
        kept[[*excluded]] = np.nan
        return np.minimum(kept * size, 1.0) if without_seeds else holm(kept, size=size)

    alone_adjusted, alone_over_seeds = by_holm(p_values), by_holm(alone.p_values)
    if blocks is None or pooled is None:
        return Corrected(alone_adjusted, alone_over_seeds, size)
    # Tukey's correction. The pooled variance is too small for a pair whose spread is larger than it
    # seems, so no p value is below that of the pair's own t test.
    joint, over_runs = (
        range_p_values(np.sqrt(2) * t_values(alone.means, variance), num_arms, freedom)
        for variance, freedom in (
            (pooled.joint, pooled.freedom), (pooled.over_runs, blocks.freedom),
        )
    )  # fmt: skip
    over_seeds = np.maximum(over_runs, alone.p_values)
    adjusted = np.maximum(over_seeds, joint)
    if blocks.are_spreads_equal:
        return Corrected(adjusted, over_seeds, size)
    adjusted = np.maximum(adjusted, alone_adjusted)
    return Corrected(adjusted, np.maximum(over_seeds, alone_over_seeds), size)


def _p_values(alone: PairTests, known: CrossedErrors, *, without_seeds: bool) -> Array:
    """Test pairs over seeds and test examples, each by itself; NaN without a test."""
    of_seeds = seed_freedom(alone.num_seeds)
    values = joint_p_values(alone.means, alone.squared_errors, of_seeds, known)
    values = np.where(np.isnan(values), alone.p_values, values)  # Welch's, without common seeds
    if without_seeds:
        values[are_alike(alone.means, np.sqrt(known.examples))] = np.nan
    else:
        values[np.isnan(alone.p_values)] = np.nan
    return values


def _by_blocks(
    values: Array, alone: PairTests, blocks: Blocks, known: CrossedErrors
) -> tuple[Array, PooledErrors]:
    """Test pairs by the pooled variance, which decides if spreads are equal."""
    over_runs = blocks.squared_errors(alone.squared_errors)
    of_runs = np.full_like(over_runs, blocks.freedom)
    joint, freedom = joint_errors(over_runs, of_runs, known)
    by_blocks = joint_p_values(alone.means, over_runs, of_runs, known)
    if blocks.are_spreads_equal:
        by_blocks[np.isnan(values)] = np.nan
    else:
        by_blocks = np.maximum(by_blocks, values)
    return by_blocks, PooledErrors(over_runs, joint, freedom)


def holm(values: Sequence[float] | Array, *, size: int | None = None) -> Array:
    """Correct the p values of a family of comparisons, in the order given."""
    # `size` is the number of comparisons of the family, by default that of the values. Those
    # without a value and NaN, which have no test yet, count like the largest p value.
    # The smallest of m is multiplied by m, the next by m - 1, and so on; none may be lower than the
    # one before it, or exceed 1. Reference: Holm 1979, "A simple sequentially rejective multiple
    # test procedure".
    adjusted = np.array(values, dtype=np.float64)
    order = np.argsort(adjusted)[: np.count_nonzero(~np.isnan(adjusted))]  # NaN come last
    num = size or len(adjusted)
    by_rank = np.maximum.accumulate(adjusted[order] * np.arange(num, num - len(order), -1))
    adjusted[order] = np.minimum(by_rank, 1.0)
    return adjusted
