"""A weighted sum of scores, such as a difference or a difference of differences, against zero.

Over pretraining runs, arms are a randomised block design: run k of each arm has the same seeds, so
runs are blocks. The variance of the arms' scores is pooled over all arms, with (arms - 1) x
(runs - 1) degrees of freedom instead of the (runs - 1) of a pair. This assumes that the difference
of each pair of arms has the same spread, which John's test checks. It is pooled over all arms and
over those of the family; both tests count, because the arms of a family may vary more than the
others. Where spreads differ, or a sum is over several datasets, the variance is that of the sum
itself; where both are known, the larger p value and the wider interval count. Test examples are
covered if they are known.

References: Cochran and Cox 1957, "Experimental designs", chapter 4; John 1971, "Some optimal
multivariate tests"; Huynh and Feldt 1970 for the assumption (sphericity).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from biphasic.analysis.estimate import LEVEL, UPPER
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.statistics.crossed import (
    NO_EXAMPLES,
    CrossedErrors,
    are_alike,
    contrast_errors,
    joint_errors,
    p_values,
)
from biphasic.analysis.statistics.paired import (
    NO_SPREAD,
    Criterion,
    critical_range,
    detectable,
    deviation,
)
from biphasic.errors import DataError
from biphasic.facts import is_baseline
from biphasic.seeds import stream

Array = NDArray[np.float64]

# Spreads differ if John's p value is at most this: it has little power with few runs.
SPREAD_LEVEL = 0.1
FEWEST = 3  # arms and runs: with two arms there is nothing to pool, with two runs nothing to check
_SAMPLES = 9_999


@dataclass(frozen=True)
class Blocks:
    """The pooled variance of arms on a dataset, and the p value of John's test of equal spreads."""

    num_arms: int
    num_runs: int
    variance: float  # of an arm's score in a run, in squared percentage points
    spread_p: float

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the variance."""
        return (self.num_arms - 1) * (self.num_runs - 1)

    @property
    def are_spreads_equal(self) -> bool:
        """Return whether the check found no difference between the arms' spreads."""
        return self.spread_p > SPREAD_LEVEL

    def squared_errors(self, own: Array, *, squares: float = 2.0) -> Array:
        """Return squared standard errors of weighted sums, from those of the sums by themselves."""
        # A sum with a larger spread than the pooled one keeps its own. `squares` is the sum of the
        # squared weights: 2 for a difference.
        return np.maximum(squares * self.variance / self.num_runs, own)


def blocks_of(scores: Scores, models: Sequence[str], dataset: str) -> Blocks | None:
    """Pool the variance of models; None unless three or more have the same three runs or more."""
    if scores.num_pretraining_runs < FEWEST or len(models) < FEWEST:
        return None
    by_run = [scores.get(model, dataset).by_seed or {} for model in models]
    runs = sorted(by_run[0])
    if len(runs) < FEWEST or any(set(row) != set(runs) for row in by_run):
        return None
    return pooled(np.array([[row[run] for run in runs] for row in by_run]))


def pooled(table: Array) -> Blocks | None:
    """Pool the variance of [num_arms, num_runs] scores; None without any spread."""
    num_arms, num_runs = table.shape
    variance, rest = residual_variance(table), residuals(table)
    if variance <= NO_SPREAD**2:
        return None
    # Both have the same eigenvalues besides zeros, and the statistic reads nothing else.
    crossed = rest @ rest.T if num_arms < num_runs else rest.T @ rest
    null = _evenness(min(num_arms, num_runs) - 1, max(num_arms, num_runs) - 1)
    # The observed table counts as one of the draws, so that p is never zero.
    below = int(np.searchsorted(null, _even(crossed) * (1 + 1e-12), side="right"))
    return Blocks(num_arms, num_runs, variance, (below + 1) / (len(null) + 1))


def residuals(table: Array) -> Array:
    """Return [num_arms, num_runs] scores without the means of arms and of runs."""
    rest = table - table.mean(axis=1, keepdims=True)
    return rest - rest.mean(axis=0)


def residual_variance(table: Array) -> float:
    """Return the pooled variance of an arm's score in a run, from [num_arms, num_runs] scores."""
    num_arms, num_runs = table.shape
    return float((residuals(table) ** 2).sum()) / ((num_arms - 1) * (num_runs - 1))


def _even(crossed: Array) -> Array:
    """Return John's statistic of [..., n, n] cross products: larger if spreads are more alike."""
    return np.trace(crossed, axis1=-2, axis2=-1) ** 2 / (crossed**2).sum(axis=(-2, -1))


@lru_cache(maxsize=64)
def _evenness(size: int, freedom: int) -> Array:
    """Return the sorted statistics of equal spreads: of normal values it has no parameters."""
    draw = np.random.Generator(stream("equal spreads", 0, size, freedom))
    # Bartlett's decomposition of a Wishart matrix.
    lower = np.tril(draw.normal(size=(_SAMPLES, size, size)), -1)
    diagonal = np.arange(size)
    lower[:, diagonal, diagonal] = np.sqrt(draw.chisquare(freedom - diagonal, (_SAMPLES, size)))
    return np.sort(_even(lower @ lower.swapaxes(1, 2)))


Weights = Mapping[tuple[str, str], float]  # by names of model and dataset


class SumTest(NamedTuple):
    """Student's test of a sum by one variance over seeds; of several sums, arrays."""

    error: Any  # standard error over seeds and, if known, test examples
    freedom: Any
    seed_error: Any  # standard error over seeds alone
    seed_freedom: Any
    p_value: Any  # two-sided, uncorrected
    p_over_seeds: Any

    @property
    def reach(self) -> float:
        """Half-width of the 95 % interval of a single sum."""
        return max(
            quantile(self.freedom, UPPER) * self.error,
            quantile(self.seed_freedom, UPPER) * self.seed_error,
        )


def by_each_variance(
    means: Array,
    own: Array,
    num_seeds: Array,
    errors: CrossedErrors,
    *,
    blocks: Sequence[Blocks] = (),
    squares: float = 2.0,
) -> list[SumTest]:
    """Test sums by their own variances, then by each pooled one."""
    # `own` are squared standard errors over seeds, 0 with one seed.
    pooled = ((one.squared_errors(own, squares=squares), one.freedom) for one in blocks)
    tests = []
    for squared, freedom in ((own, np.maximum(num_seeds - 1.0, 1)), *pooled):
        of_seeds = np.broadcast_to(np.asarray(freedom, np.float64), squared.shape)
        joint, of_joint = joint_errors(squared, of_seeds, errors)
        over_seeds = p_values(means, squared, of_seeds)
        p = np.maximum(p_values(means, joint, of_joint), over_seeds)
        roots = np.sqrt(joint), np.sqrt(squared)
        tests.append(SumTest(roots[0], of_joint, roots[1], of_seeds, p, over_seeds))
    return tests


Verdict = Literal["higher", "lower", "undecided", "unknown"]


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of scores against zero, averaged over the seeds that all of them have."""

    mean: float  # in percentage points
    by_seed: Mapping[int, float]  # the sum of each seed; empty if only means are known
    # By each pooled variance; where spreads differ, by the variance of the sum itself first.
    tests: tuple[SumTest, ...]
    example_error: float  # standard error over test examples; 0 if they are unknown
    num_examples: int
    num_clusters: int  # those drawn independently: clusters of examples, or the examples
    p_value: float | None  # the largest of `tests`; None without a test
    p_over_seeds: float | None
    # Over seeds, by the spread of the sum itself. A difference is never clear if this is above
    # `LEVEL`. None without a spread.
    p_alone: float | None
    is_pooled: bool  # whether pooled variances alone decide
    missing: str  # why test examples are unknown; empty if they are known
    half_width: float | None = None  # of the interval, if it is not that of a test
    # Corrected for its family, and likewise over seeds alone; None without a test.
    p_adjusted: float | None = None
    p_adjusted_over_seeds: float | None = None
    family_size: int = 1
    num_arms: int | None = None  # arms whose pairs Tukey's correction covers; None for Holm's

    @property
    def deciding(self) -> SumTest:
        """The test with the widest interval."""
        return max(self.tests, key=lambda test: test.reach)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Ends of the 95 % interval, not corrected for other comparisons; None without a test."""
        if self.p_value is None:
            return None
        reach = self.deciding.reach if self.half_width is None else self.half_width
        return self.mean - reach, self.mean + reach

    @property
    def verdict(self) -> Verdict:
        """Whether it is above zero: `undecided` if not clear, `unknown` if untested."""
        if self.p_adjusted is None:
            return "unknown"
        if self.p_adjusted > LEVEL or self.mean == 0:
            return "undecided"
        return "higher" if self.mean > 0 else "lower"

    @property
    def is_clear(self) -> bool:
        """Whether it is clearly above or below zero."""
        return self.verdict in {"higher", "lower"}

    def __neg__(self) -> Contrast:
        """Return the sum with the opposite sign."""
        by_seed = {seed: -value for seed, value in self.by_seed.items()}
        return replace(self, mean=-self.mean, by_seed=by_seed)

    def p_corrected(self, corrected: float) -> float | None:
        """Return a corrected p value, but not below that of the sum by itself; None if NaN."""
        if math.isnan(corrected):
            return None
        return max(corrected, self.p_alone or 0.0) if self.is_pooled else corrected

    def within(self, margin: float) -> Contrast:
        """Return the sum with p values that test whether it is within a margin of zero."""
        # Two one-sided tests: the nearer end of the margin decides. Reference: Schuirmann 1987, "A
        # comparison of the two one-sided tests procedure and the power approach".
        if self.p_value is None or not self.deciding.error:
            return replace(self, p_value=None, p_over_seeds=None, p_alone=None)
        distance = margin - abs(self.mean)

        def p(error: float, freedom: float) -> float:
            return float(scipy.special.stdtr(freedom, -distance / error)) if error else 0.0

        num, spread = len(self.by_seed), deviation([*self.by_seed.values()])
        over_seeds = max(p(test.seed_error, test.seed_freedom) for test in self.tests)
        return replace(
            self,
            p_value=max(over_seeds, *(p(test.error, test.freedom) for test in self.tests)),
            p_over_seeds=over_seeds if spread else None,
            p_alone=p(spread / math.sqrt(num), num - 1) if spread else None,
        )

    def criteria(self, level: float = LEVEL / 2) -> list[tuple[Criterion, ...]]:
        """Return the tests by each variance, of a tail of `level`, that a difference must pass."""
        share = 1 - level / self.family_size

        def joint(test: SumTest) -> Criterion:
            critical = (
                quantile(test.freedom, share)
                if self.num_arms is None
                else critical_range(self.num_arms, test.freedom) / math.sqrt(2)
            )
            return Criterion(test.error, test.freedom, critical)

        if self.p_alone is None:
            return [(joint(self.deciding),)]
        if self.is_pooled:
            freedom = len(self.by_seed) - 1
            own = quantile(freedom, 1 - level)  # without a correction
            return [(joint(of), Criterion(of.seed_error, freedom, own)) for of in self.tests]
        over_seeds = (
            Criterion(of.seed_error, of.seed_freedom, quantile(of.seed_freedom, share))
            for of in self.tests
        )
        return [(one,) for one in (*map(joint, self.tests), *over_seeds)]

    @cached_property
    def detectable(self) -> float | None:
        """Smallest difference that is clear with 80 % power, corrected; None without a spread."""
        if self.p_value is None or not self.tests or not self.deciding.error:
            return None
        return max(detectable(each, other_misses=other_misses(each)) for each in self.criteria())


def other_misses(criteria: Sequence[Criterion]) -> float:
    """Return how often spreads seem to differ, so that a pooled variance does not decide alone."""
    return SPREAD_LEVEL if len(criteria) > 1 else 0.0


def corrected(
    family: Sequence[Contrast | None], *, size: int | None = None
) -> list[Contrast | None]:
    """Correct the p values of a family by Holm's procedure; None are comparisons without a test."""
    size = size or len(family)
    both = [
        holm(np.array([one and getattr(one, name) for one in family], np.float64), size=size)
        for name in ("p_value", "p_over_seeds")
    ]
    return [
        one
        and replace(
            one,
            p_adjusted=one.p_corrected(float(p)),
            p_adjusted_over_seeds=one.p_corrected(float(of_seeds)),
            family_size=size,
        )
        for one, p, of_seeds in zip(family, *both, strict=True)
    ]


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


def contrast(scores: Scores, weights: Weights, *, blocks: Sequence[Blocks]) -> Contrast | None:
    """Test a weighted sum of scores; None if no seed has all of them."""
    parts = [(weight, scores.get(*key).by_seed or {}) for key, weight in weights.items()]
    seeds = sorted(set.intersection(*(set(by_seed) for _, by_seed in parts)))
    if not seeds:
        return None
    by_seed = {seed: math.fsum(weight * of[seed] for weight, of in parts) for seed in seeds}
    # Without single examples, the test is over seeds alone, and says so.
    try:
        errors, missing = contrast_errors(scores, weights, seeds), ""
    except DataError as error:
        errors, missing = NO_EXAMPLES, str(error)
    squares = math.fsum(of**2 for (name, _), of in weights.items() if not is_baseline(name))
    is_zero_shot = all(scores.dataset(dataset).is_zero_shot for _, dataset in weights)
    without_seeds = is_zero_shot and not scores.is_replicated
    return contrast_of(
        by_seed, errors, blocks=blocks, squares=squares, without_seeds=without_seeds,
        missing=missing,
    )  # fmt: skip


def contrast_of(
    by_seed: Mapping[int, float],
    errors: CrossedErrors,
    *,
    blocks: Sequence[Blocks] = (),
    squares: float = 2.0,
    without_seeds: bool = False,
    missing: str = "",
) -> Contrast:
    """Test the mean of values by seed, in percentage points."""
    # `errors` are over test examples; `squares` is the sum of the squared weights. `without_seeds`,
    # a value needs no spread over seeds.
    mean, spread = math.fsum(by_seed.values()) / len(by_seed), deviation([*by_seed.values()])
    num = len(by_seed)
    found = by_each_variance(
        np.array([mean]), np.array([spread**2 / num]), np.array([num]), errors,
        blocks=blocks if spread else (), squares=squares,
    )  # fmt: skip
    alone, *pooled = (SumTest(*(float(values[0]) for values in test)) for test in found)
    is_pooled = bool(pooled) and all(one.are_spreads_equal for one in blocks)
    tests = (*pooled,) if is_pooled else (alone, *pooled)
    has_test = spread or (
        without_seeds and errors.num_examples and not are_alike(mean, math.sqrt(errors.examples[0]))
    )
    return Contrast(
        mean=mean,
        by_seed=by_seed,
        tests=tests,
        example_error=math.sqrt(errors.examples[0]),
        num_examples=errors.num_examples,
        num_clusters=errors.num_clusters,
        p_value=max(test.p_value for test in tests) if has_test else None,
        p_over_seeds=max(test.p_over_seeds for test in tests) if spread else None,
        p_alone=alone.p_over_seeds if spread else None,
        is_pooled=is_pooled,
        missing=missing,
    )


_ROUNDING = 1e-9


def blocks_for(scores: Scores, weights: Weights, *, family: Iterable[str] = ()) -> list[Blocks]:
    """Pool the variance of all finished models, and that of a family's own, on a sum's dataset."""
    # Without a family, the models of the sum are one. Empty if the sum is over several datasets, or
    # if the weights of its models do not add up to zero, as without a baseline: then the effect
    # that a run has on all models does not cancel.
    datasets = {dataset for _, dataset in weights}
    of_models = {name: weight for (name, _), weight in weights.items() if not is_baseline(name)}
    if len(datasets) != 1 or abs(math.fsum(of_models.values())) > _ROUNDING:
        return []
    [dataset] = datasets
    means, own = scores.means(dataset), dict.fromkeys([*family, *of_models])
    finished = [model.name for model in scores.models if model.is_final and model.name in means]
    every = dict.fromkeys([*finished, *own])
    groups = [every] if len(own) == len(every) else [every, own]
    found = (blocks_of(scores, [*group], dataset) for group in groups)
    return [blocks for blocks in found if blocks is not None]


def quantile(freedom: float, share: float) -> float:
    """Return a quantile of Student's t."""
    return float(scipy.special.stdtrit(freedom, share))
