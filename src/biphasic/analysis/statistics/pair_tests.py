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
    CrossedErrors,
    joint_errors,
    joint_p_values,
    seed_freedom,
    t_values,
)
from biphasic.analysis.statistics.example_compare import FamilyErrors
from biphasic.analysis.statistics.pairs import PairTests, all_pairs, row_groups
from biphasic.analysis.statistics.tukey import range_p_values

Array = NDArray[np.float64]


class PooledErrors(NamedTuple):
    """Squared standard errors by the pooled variance, [num_pairs].

    Attributes:
        means: Mean differences, in percentage points.
        over_runs: Over runs alone.
        joint: Over runs and test examples.
        freedom: Degrees of freedom of `joint`.
    """

    means: Array
    over_runs: Array
    joint: Array
    freedom: Array


@dataclass(frozen=True)
class FamilyTests:
    """Tests of every pair of models, in the order of `itertools.combinations`.

    Attributes:
        p_values: Of the test that decides, uncorrected; NaN without a test. [num_pairs]
        p_alone: Over seeds, of each pair by itself.
        blocks: The pooled variance over runs; None if it does not apply.
        pooled: Errors by the pooled variance; None if it does not apply.
        without_seeds: Whether only test examples are random: zero-shot scores of one run.
    """

    p_values: Array
    p_alone: Array
    blocks: Blocks | None
    pooled: PooledErrors | None
    without_seeds: bool

    @property
    def uses_blocks(self) -> bool:
        """Return whether the pooled variance decides alone."""
        return self.blocks is not None and self.blocks.are_spreads_equal

    def corrected_alone(self, apart: Sequence[int]) -> tuple[Array, Array]:
        """Correct for all pairs but those `apart`, without Tukey; also over seeds alone."""
        size = self.size(apart) if self.without_seeds else None
        # Tukey's correction needs the p values of each pair by itself.
        both = (self.p_values, self.p_alone if self.blocks is None else self.p_alone.copy())
        for values in both:
            values[[*apart]] = np.nan
            if size is None:
                _holm_in_place(values)
            else:
                np.minimum(values * size, 1.0, out=values)
        return both

    def by_tukey(self, places: NDArray[np.int64] | slice, *, over_seeds: bool = False) -> Array:
        """Correct some pairs for all, by the pooled variance.

        No p value is below that of the pair's own t test: the pooled variance is too small for a
        pair whose spread is larger than it seems.
        """
        assert self.blocks is not None and self.pooled is not None  # noqa: S101, PT018
        pooled = self.pooled
        means = pooled.means[places]
        ranges = np.sqrt(2) * t_values(means, pooled.over_runs[places])
        corrected = range_p_values(ranges, self.blocks.num_arms, self.blocks.freedom)
        if not over_seeds:
            ranges = np.sqrt(2) * t_values(means, pooled.joint[places])
            joint = range_p_values(ranges, self.blocks.num_arms, pooled.freedom[places])
            corrected = np.maximum(corrected, joint)
        return np.maximum(corrected, self.p_alone[places])

    def size(self, apart: Sequence[int] = ()) -> int:
        """Return the number of pairs that are corrected for."""
        is_counted = np.full(len(self.p_values), True)
        if not self.without_seeds:
            np.isnan(self.p_values, out=is_counted)
            np.logical_not(is_counted, out=is_counted)
        is_counted[[*apart]] = False
        return max(int(is_counted.sum()), 1)


def tests_of(
    scores: Scores,
    models: Sequence[str],
    dataset: DatasetInfo,
    blocks: Blocks | None,
    *,
    with_examples: bool,
) -> FamilyTests:
    """Test all pairs of models on a dataset; `blocks` is their pooled variance."""
    num_pairs = len(models) * (len(models) - 1) // 2
    without_seeds = dataset.is_zero_shot and scores.num_pretraining_runs == 1
    examples = None
    if with_examples and scores.examples is not None:
        examples = FamilyErrors(scores, models, dataset)
    # Filled in place: of millions of pairs, only what the correction needs is kept.
    kept, end = np.empty((2 if blocks is None else 6, num_pairs)), 0
    groups = zip(row_groups(len(models)), all_pairs(scores, models, dataset.name), strict=True)
    for rows, alone in groups:
        none = np.zeros(len(alone.means))
        known = CrossedErrors(none, none, 0) if examples is None else examples.of(rows)
        if not without_seeds:  # where examples are unknown, seeds decide
            known = replace(
                known, examples=np.nan_to_num(known.examples), shared=np.nan_to_num(known.shared)
            )
        part = kept[:, end : end + len(none)]
        end += len(none)
        part[:2] = _p_values(alone, known, without_seeds=without_seeds), alone.p_values
        if blocks is not None:
            part[0], pooled = _by_blocks(part[0], alone, blocks, known)
            part[2:] = pooled
    pooled = None if blocks is None else PooledErrors(*kept[2:])
    return FamilyTests(kept[0], kept[1], blocks, pooled, without_seeds)


def _p_values(alone: PairTests, known: CrossedErrors, *, without_seeds: bool) -> Array:
    """Test pairs over seeds and test examples, each by itself; NaN without a test."""
    of_seeds = seed_freedom(alone.num_seeds)
    values = joint_p_values(alone.means, alone.squared_errors, of_seeds, known)
    values = np.where(np.isnan(values), alone.p_values, values)  # Welch's, without common seeds
    values[np.isnan(alone.p_values) & (not without_seeds)] = np.nan
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


def holm(values: Sequence[float] | Array) -> Array:
    """Correct the p values of a family of comparisons, in the order given; NaN is left out.

    The smallest of m is multiplied by m, the next by m - 1, and so on; none may be lower than the
    one before it, or exceed 1.

    Reference: Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    return _holm_in_place(np.array(values, dtype=np.float64))


def _holm_in_place(values: Array) -> Array:
    num = int((~np.isnan(values)).sum())
    bound = _one_above(values, num)
    small = np.flatnonzero(values <= bound)
    # Equal values need no stable order: the first has the largest factor, and counts for all.
    order = small[np.argsort(values[small])]
    adjusted = np.maximum.accumulate(values[order] * np.arange(num, num - len(order), -1))
    values[values > bound] = 1.0
    values[order] = np.minimum(adjusted, 1.0)
    return values


def _one_above(values: Array, num: int) -> float:
    """Return a p value above which Holm's correction gives 1, so that few values are sorted.

    With k of `num` values up to it, the next is multiplied by `num` - k.
    """
    bound, below = 0.0, 0
    while below < num and bound * (num - below) < 1:
        bound = 2 / (num - below)
        below = int((values <= bound).sum())
    return bound
