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
from biphasic.analysis.statistics.blocks import Blocks, blocks_of
from biphasic.analysis.statistics.crossed import (
    CrossedErrors,
    joint_errors,
    joint_p_values,
    seed_freedom,
    t_values,
)
from biphasic.analysis.statistics.example_compare import family_errors
from biphasic.analysis.statistics.pairs import PairTests, all_pairs
from biphasic.analysis.statistics.tukey import range_p_values

Array = NDArray[np.float64]


class PooledErrors(NamedTuple):
    """Squared standard errors by the pooled variance, [num_pairs].

    Attributes:
        over_runs: Over runs alone.
        joint: Over runs and test examples.
        freedom: Degrees of freedom of `joint`.
    """

    over_runs: Array
    joint: Array
    freedom: Array


@dataclass(frozen=True)
class FamilyTests:
    """Tests of every pair of models, in the order of `itertools.combinations`.

    Attributes:
        alone: Tests over seeds of each pair by itself.
        blocks: The pooled variance over runs; None if it does not apply.
        errors: Squared standard errors of the test that decides. [num_pairs]
        freedom: Their degrees of freedom.
        p_values: Of that test, uncorrected; NaN without a test.
        pooled: Errors by the pooled variance; None if it does not apply.
        without_seeds: Whether only test examples are random: zero-shot scores of one run.
    """

    alone: PairTests
    blocks: Blocks | None
    errors: Array
    freedom: Array
    p_values: Array
    pooled: PooledErrors | None
    without_seeds: bool

    @property
    def uses_blocks(self) -> bool:
        """Return whether the pooled variance decides alone."""
        return self.blocks is not None and self.blocks.are_spreads_equal

    def corrected(self, apart: Sequence[int] = (), *, over_seeds: bool = False) -> Array:
        """Correct for all pairs but those `apart`, which have their own correction.

        With `over_seeds`, test examples are ignored.
        """
        values = (self.alone.p_values if over_seeds else self.p_values).copy()
        values[[*apart]] = np.nan
        if self.without_seeds:
            return np.minimum(values * self.size(apart), 1.0)
        if self.blocks is None:
            return holm(values)
        places = np.flatnonzero(~np.isnan(values))
        corrected = values if self.uses_blocks else holm(values)
        tukey = self.by_tukey(places, over_seeds=over_seeds)
        corrected[places] = tukey if self.uses_blocks else np.maximum(tukey, corrected[places])
        return corrected

    def by_tukey(self, places: NDArray[np.int64], *, over_seeds: bool = False) -> Array:
        """Correct some pairs for all, by the pooled variance.

        No p value is below that of the pair's own t test: the pooled variance is too small for a
        pair whose spread is larger than it seems.
        """
        assert self.blocks is not None and self.pooled is not None  # noqa: S101, PT018
        means, pooled = self.alone.means[places], self.pooled
        ranges = np.sqrt(2) * t_values(means, pooled.over_runs[places])
        corrected = range_p_values(ranges, self.blocks.num_arms, self.blocks.freedom)
        if not over_seeds:
            ranges = np.sqrt(2) * t_values(means, pooled.joint[places])
            joint = range_p_values(ranges, self.blocks.num_arms, pooled.freedom[places])
            corrected = np.maximum(corrected, joint)
        return np.maximum(corrected, self.alone.p_values[places])

    def size(self, apart: Sequence[int] = ()) -> int:
        """Return the number of pairs that are corrected for."""
        values = np.delete(self.p_values, [*apart])
        return max(len(values) if self.without_seeds else int((~np.isnan(values)).sum()), 1)


def tests_of(
    scores: Scores, models: Sequence[str], dataset: DatasetInfo, *, with_examples: bool
) -> FamilyTests:
    """Test all pairs of models on a dataset."""
    alone = all_pairs(scores, models, dataset.name)
    without_seeds = dataset.is_zero_shot and scores.num_pretraining_runs == 1
    none = np.zeros(len(alone.means))
    known = CrossedErrors(none, none, 0)
    if with_examples and scores.examples is not None:
        known = family_errors(scores, models, dataset)
        if not without_seeds:  # where examples are unknown, seeds decide
            known = replace(
                known, examples=np.nan_to_num(known.examples), shared=np.nan_to_num(known.shared)
            )
    of_pairs = seed_freedom(alone.num_seeds)
    errors, freedom = joint_errors(alone.squared_errors, of_pairs, known)
    values = joint_p_values(alone.means, alone.squared_errors, of_pairs, known)
    has_test = ~np.isnan(alone.p_values) | without_seeds
    values = np.where(np.isnan(values), alone.p_values, values)  # Welch's, without common seeds
    values[~has_test] = np.nan
    tests = FamilyTests(
        alone=alone,
        blocks=blocks_of(scores, models, dataset.name),
        errors=errors,
        freedom=freedom,
        p_values=values,
        pooled=None,
        without_seeds=without_seeds,
    )
    return tests if tests.blocks is None else _with_blocks(tests, tests.blocks, known)


def _with_blocks(tests: FamilyTests, blocks: Blocks, known: CrossedErrors) -> FamilyTests:
    """Add the tests by the pooled variance, which decide if spreads are equal."""
    means = tests.alone.means
    over_runs = blocks.squared_errors(tests.alone.squared_errors)
    of_runs = np.full_like(over_runs, blocks.freedom)
    errors, freedom = joint_errors(over_runs, of_runs, known)
    values = joint_p_values(means, over_runs, of_runs, known)
    if blocks.are_spreads_equal:
        values[np.isnan(tests.p_values)] = np.nan
        tests = replace(tests, errors=errors, freedom=freedom)
    else:
        values = np.maximum(values, tests.p_values)
    return replace(tests, p_values=values, pooled=PooledErrors(over_runs, errors, freedom))


def holm(values: Sequence[float] | Array) -> Array:
    """Correct the p values of a family of comparisons, in the order given; NaN is left out.

    The smallest of m is multiplied by m, the next by m - 1, and so on; none may be lower than the
    one before it, or exceed 1.

    Reference: Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    adjusted = np.array(values, dtype=np.float64)
    known = np.flatnonzero(~np.isnan(adjusted))
    order = known[np.argsort(adjusted[known], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(adjusted[order] * factors), 1.0)
    return adjusted
