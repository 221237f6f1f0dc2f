"""Tests of all pairs of models on a dataset, and their correction as a family.

Over pretraining runs that all models share, the test is that of a randomised block design
(`blocks.py`), with Tukey's correction. Otherwise, and where the spreads of models differ, each pair
is tested by itself, with Holm's correction. Both cover the test examples, if they are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from biphasic.analysis.scores.table import DatasetInfo, Scores
from biphasic.analysis.statistics.blocks import Blocks
from biphasic.analysis.statistics.crossed import (
    NO_EXAMPLES,
    CrossedErrors,
    are_alike,
    joint_errors,
    joint_p_values,
    seed_freedom,
    t_values,
)
from biphasic.analysis.statistics.example_compare import FamilyErrors
from biphasic.analysis.statistics.pairs import PairTests, all_pairs
from biphasic.analysis.statistics.tukey import range_p_values

Array = NDArray[np.float64]
Places = NDArray[np.int64] | slice


class PooledErrors(NamedTuple):
    """Mean differences and squared standard errors by the pooled variance, [num_pairs]."""

    means: Array
    over_runs: Array
    joint: Array  # over runs and test examples
    freedom: Array  # of `joint`


@dataclass(frozen=True)
class FamilyTests:
    """Tests of every pair of models, in the order of `itertools.combinations`."""

    p_values: Array  # of the test that decides, uncorrected; NaN without a test. [num_pairs]
    p_alone: Array  # over seeds, of each pair by itself
    blocks: Blocks | None  # the pooled variance over runs; None if it does not apply
    pooled: PooledErrors | None  # errors by the pooled variance; None if it does not apply
    without_seeds: bool  # whether only test examples are random: zero-shot scores of one run
    num_arms: int  # with those that have no score yet

    def corrected(self, excluded: Sequence[int], *, size: int) -> Corrected:
        """Correct for `size` pairs, without those excluded; call it once, as it overwrites."""
        # Tukey's correction needs the p values of each pair by itself.
        both = (self.p_values, self.p_alone if self.blocks is None else self.p_alone.copy())
        for values in both:
            values[[*excluded]] = np.nan
            if self.without_seeds:
                np.minimum(values * size, 1.0, out=values)
            else:
                _holm_in_place(values, size)
        return Corrected(*both, size, self)


class Corrected(NamedTuple):
    """P values of all exploratory pairs, in the order of `itertools.combinations`."""

    # Corrected; NaN without a test. Tukey's correction comes on top, for each pair.
    p_adjusted: Array
    p_over_seeds: Array  # the same over seeds alone
    size: int  # number of pairs that are corrected for
    tests: FamilyTests

    def at(self, places: Places) -> tuple[Array, Array]:
        """Return the p values of some pairs, and those over seeds alone, both corrected."""
        alone = self.p_adjusted[places], self.p_over_seeds[places]
        blocks, pooled = self.tests.blocks, self.tests.pooled
        if blocks is None or pooled is None:
            return alone
        means = pooled.means[places]
        ranges = np.sqrt(2) * t_values(means, pooled.over_runs[places])
        over_runs = range_p_values(ranges, self.tests.num_arms, blocks.freedom)
        ranges = np.sqrt(2) * t_values(means, pooled.joint[places])
        joint = range_p_values(ranges, self.tests.num_arms, pooled.freedom[places])
        # The pooled variance is too small for a pair whose spread is larger than it seems, so no p
        # value is below that of the pair's own t test.
        over_seeds = np.maximum(over_runs, self.tests.p_alone[places])
        adjusted = np.maximum(over_seeds, joint)
        if blocks.are_spreads_equal:
            return adjusted, over_seeds
        return np.maximum(adjusted, alone[0]), np.maximum(over_seeds, alone[1])


def tests_of(
    scores: Scores,
    models: Sequence[str],
    dataset: DatasetInfo,
    blocks: Blocks | None,
    *,
    num_arms: int,
) -> FamilyTests:
    """Test all pairs of models on a dataset; `blocks` is their pooled variance."""
    num_pairs = len(models) * (len(models) - 1) // 2
    without_seeds = dataset.is_zero_shot and not scores.is_replicated
    examples = FamilyErrors(scores, models, dataset) if scores.examples is not None else None
    # Filled in place: of millions of pairs, only what the correction needs is kept.
    kept, end = np.empty((2 if blocks is None else 6, num_pairs)), 0
    for rows, alone in all_pairs(scores, models, dataset.name):
        known = NO_EXAMPLES if examples is None else examples.of(rows)
        if not without_seeds:  # where examples are unknown, seeds decide
            known = replace(
                known, examples=np.nan_to_num(known.examples), shared=np.nan_to_num(known.shared)
            )
        part = kept[:, end : end + len(alone.means)]
        end += len(alone.means)
        part[:2] = _p_values(alone, known, without_seeds=without_seeds), alone.p_values
        if blocks is not None:
            part[0], pooled = _by_blocks(part[0], alone, blocks, known)
            part[2:] = pooled
    pooled = None if blocks is None else PooledErrors(*kept[2:])
    return FamilyTests(kept[0], kept[1], blocks, pooled, without_seeds, num_arms)


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
    return by_blocks, PooledErrors(alone.means, over_runs, joint, freedom)


def holm(values: Sequence[float] | Array, *, size: int | None = None) -> Array:
    """Correct the p values of a family of comparisons, in the order given."""
    # `size` is the number of comparisons of the family, by default that of the values. Those
    # without a value and NaN, which have no test yet, count like the largest p value.
    # The smallest of m is multiplied by m, the next by m - 1, and so on; none may be lower than the
    # one before it, or exceed 1. Reference: Holm 1979, "A simple sequentially rejective multiple
    # test procedure".
    return _holm_in_place(np.array(values, dtype=np.float64), size or len(values))


def _holm_in_place(values: Array, num: int) -> Array:
    # P values above a bound stay 1, so that few of millions are sorted: with k of `num` values up
    # to it, the next is multiplied by `num` - k.
    bound, below = 0.0, 0
    while below < num and bound * (num - below) < 1:
        bound = 2 / (num - below)
        below = int((values <= bound).sum())
    small = np.flatnonzero(values <= bound)
    # Equal values need no stable order: the first has the largest factor, and counts for all.
    order = small[np.argsort(values[small])]
    adjusted = np.maximum.accumulate(values[order] * np.arange(num, num - len(order), -1))
    values[values > bound] = 1.0
    values[order] = np.minimum(adjusted, 1.0)
    return values
