"""Arms that share pretraining runs: a randomised block design.

Run k of each arm has the same seeds, so runs are blocks. The variance of the arms' scores is pooled
over all arms, with (arms - 1) x (runs - 1) degrees of freedom instead of the (runs - 1) of a pair.
This assumes that the difference of each pair of arms has the same spread. John's test checks it;
where spreads differ, pairs are tested by themselves.

References: Cochran and Cox 1957, "Experimental designs", chapter 4; John 1971, "Some optimal
multivariate tests"; Huynh and Feldt 1970 for the assumption (sphericity).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from biphasic.analysis.scores.table import Scores
from biphasic.analysis.statistics.paired import NO_SPREAD
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
