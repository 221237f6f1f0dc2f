"""How a difference would vary over other seeds and other test examples, by a bootstrap.

Seeds and examples are crossed: every seed is scored on the same examples, and so is every arm. So
examples are drawn once for all seeds and arms, and seeds apart from them; the two deviations add.
Drawing from n seeds makes their spread too small by n - 1 over n, which is put right.

The interval is Student's t times the bootstrap's standard error: with few degrees of freedom where
few seeds make most of the error, nearly the normal one where examples do (Satterthwaite's formula);
and never narrower than what seeds alone give.
What seeds and examples do together is counted twice, so that intervals are rather too wide.

References: Efron and Tibshirani 1993, "An introduction to the bootstrap", chapters 6 and 8; Owen
2007, "The pigeonhole bootstrap", for crossed factors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from biphasic.analysis.examples import RunExamples
from biphasic.seeds import stream

NUM_RESAMPLES = 2_000
_BLOCK = 2_000_000
"""Weights held at once."""
_KEPT = 4_000_000
"""Weights kept for the next comparison on the same dataset: 32 MB."""
Array = NDArray[np.float64]


@dataclass(frozen=True)
class ExampleInterval:
    """A difference with its 95 % interval over other seeds and other test examples.

    Attributes:
        low: Lower end, in percent points.
        high: Upper end, in percent points.
        p_value: Two-sided, of no difference.
        num_seeds: Pairs of seeds; with one, the interval is over examples alone.
        num_examples: Test examples.
        seed_error: Standard error that seeds cause, in percent points.
        example_error: Standard error that test examples cause, in percent points.
    """

    low: float
    high: float
    p_value: float
    num_seeds: int
    num_examples: int
    seed_error: float
    example_error: float

    @property
    def excludes_zero(self) -> bool:
        """Tell whether no difference is outside the interval."""
        return self.low > 0 or self.high < 0


def resampled_values(
    runs: Iterable[RunExamples], *, dataset: str, num_resamples: int = NUM_RESAMPLES
) -> Array:
    """Return the metric of each run on resamples of the test examples, as shares.

    All runs see the same resamples, which depend on the dataset's name and size alone.

    Args:
        runs: Over the same examples in the same order.
        dataset: Names the resamples.
        num_resamples: Their number.

    Returns:
        [num_runs, num_resamples]
    """
    runs = list(runs)
    num_examples = runs[0].terms.shape[1]
    terms = np.concatenate([run.terms for run in runs])
    draw = _kept_weights if num_examples * num_resamples <= _KEPT else _example_weights
    blocks = (terms @ weights.T for weights in draw(dataset, num_examples, num_resamples))
    sums = np.concatenate(list(blocks), axis=1)
    borders = np.cumsum([len(run.terms) for run in runs])[:-1]
    return np.stack(
        [run.combine(part) for run, part in zip(runs, np.split(sums, borders), strict=True)]
    )


@lru_cache(maxsize=2)
def _kept_weights(dataset: str, num_examples: int, num_resamples: int) -> tuple[Array, ...]:
    return tuple(_example_weights(dataset, num_examples, num_resamples))


def _example_weights(dataset: str, num_examples: int, num_resamples: int) -> Iterable[Array]:
    """Yield how often each resample has each example, [resamples, num_examples] at a time."""
    draw = np.random.Generator(stream(f"bootstrap {dataset}", num_examples))
    rows = max(1, _BLOCK // num_examples)
    for start in range(0, num_resamples, rows):
        count = min(rows, num_resamples - start)
        drawn = draw.integers(num_examples, size=(count, num_examples))
        drawn += num_examples * np.arange(count)[:, None]
        weights = np.bincount(drawn.ravel(), minlength=count * num_examples)
        yield weights.reshape(count, num_examples).astype(np.float64)


@lru_cache(maxsize=64)
def _seed_weights(num_seeds: int, num_resamples: int) -> Array:
    """Return the share of each seed in each resample, [num_seeds, num_resamples]."""
    draw = np.random.Generator(stream("bootstrap of seeds", num_seeds))
    weights = draw.multinomial(num_seeds, [1 / num_seeds] * num_seeds, size=num_resamples)
    return weights.T / num_seeds


def example_interval(
    differences: Sequence[float] | Array, resampled: Array, *, num_examples: int
) -> ExampleInterval:
    """Return the interval of a mean difference.

    Args:
        differences: Of each pair of seeds over all examples, in percent points.
        resampled: The same on each resample, [num_seeds, num_resamples].
        num_examples: Test examples, of all datasets together in an average.
    """
    observed = np.asarray(differences, dtype=np.float64)
    num, mean = len(observed), float(np.mean(differences))
    by_examples = float(resampled.mean(axis=0).var())
    by_seeds = 0.0
    if num > 1:
        drawn = (observed - mean) @ _seed_weights(num, resampled.shape[1])
        by_seeds = float(drawn.var()) * num / (num - 1)
    freedom = _freedom(by_seeds, num - 1, by_examples, num_examples - 1)
    # Examples can only add doubt: with two seeds the joint degrees of freedom would promise more
    # than the seeds alone.
    alone = [(by_seeds + by_examples, freedom), (by_seeds, float(max(num - 1, 1)))]
    reach = max(float(stdtrit(free, 0.975)) * math.sqrt(part) for part, free in alone)
    p_value = max(_p_value(mean, part, free) for part, free in alone)
    return ExampleInterval(
        low=mean - reach,
        high=mean + reach,
        p_value=p_value,
        num_seeds=num,
        num_examples=num_examples,
        seed_error=math.sqrt(by_seeds),
        example_error=math.sqrt(by_examples),
    )


def _p_value(mean: float, variance: float, freedom: float) -> float:
    if mean == 0:
        return 1.0
    return float(2 * stdtr(freedom, -abs(mean) / math.sqrt(variance))) if variance else 0.0


def _freedom(first: float, first_freedom: int, second: float, second_freedom: int) -> float:
    """Return the degrees of freedom of a sum of two variances (Satterthwaite 1946)."""
    parts = ((first, first_freedom), (second, second_freedom))
    if first + second == 0:
        return float(second_freedom)
    return (first + second) ** 2 / sum(part**2 / max(freedom, 1) for part, freedom in parts)
