"""Tests of all pairs of models on a dataset, and their correction as a family.

Over pretraining runs that all models share, the test is that of a randomised block design
(`contrast.py`), with Tukey's correction. Otherwise, and where the spreads of models differ, each
pair is tested by itself, with Holm's correction. Both cover the test examples, if they are known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from biphasic.analysis.estimate import NORMAL_QUANTILE, UPPER, Estimate, interval_quantile
from biphasic.analysis.scores.table import DatasetInfo, Scores
from biphasic.analysis.statistics.contrast import Blocks, by_each_variance
from biphasic.analysis.statistics.crossed import NO_EXAMPLES, are_alike, pair_errors
from biphasic.analysis.statistics.paired import NO_SPREAD, range_p_values
from biphasic.records import Convention

Array = NDArray[np.float64]


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
    _test_means(scores, models, dataset.name, over_seeds, np.flatnonzero(num == 0).tolist())
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


def _test_means(
    scores: Scores, models: Sequence[str], dataset: str, p_values: Array, places: Sequence[int]
) -> None:
    """Enter the p values of pairs without a common seed, by their means alone."""
    firsts, seconds = np.triu_indices(len(models), k=1)
    estimates = [scores.get(model, dataset).estimate for model in models]
    for place in places:
        one, other = estimates[firsts[place]], estimates[seconds[place]]
        if one is not None and other is not None:
            _, p_value = welch(one, other, scores.convention)
            p_values[place] = np.nan if p_value is None else p_value


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
