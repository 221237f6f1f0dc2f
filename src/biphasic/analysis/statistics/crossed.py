"""Variance of a mean difference over other seeds and other test examples.

Seeds and examples are crossed: every seed, and every arm, is scored on the same examples. The
squared standard error is that over seeds plus that over examples, minus their interaction, which
both of them contain (two-way analysis of variance). It is never below either.

The test is Student's t with Satterthwaite's degrees of freedom: few if a few seeds cause most of
the error, many if examples do. It is never more certain than the paired t test over seeds. Its p
values are continuous, so they can stay small after correction for many comparisons; p values from a
few thousand resamples cannot.

References: Satterthwaite 1946, "An approximate distribution of estimates of variance components";
Owen 2007, "The pigeonhole bootstrap", for crossed factors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ExampleInterval:
    """A difference with its 95 % interval over other seeds and other test examples.

    Attributes:
        low: Lower end, in percent points.
        high: Upper end, in percent points.
        p_value: Two-sided, for zero difference; not corrected for other comparisons.
        num_seeds: Pairs of seeds; with one, the interval is over examples alone.
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


@dataclass(frozen=True)
class CrossedErrors:
    """Squared standard errors of mean differences over test examples, one per pair.

    Attributes:
        examples: Caused by examples; NaN where examples are unknown.
        shared: Part of `examples` that is the interaction of seeds and examples.
        num_examples: Number of examples, of all datasets together for an average.
    """

    examples: Array
    shared: Array
    num_examples: int


def squared_errors(first: Array, second: Array) -> CrossedErrors:
    """Return the errors of each pair of first and second models, [num_first, num_second].

    Args:
        first: Contribution of each test example to each model's score with each seed; its mean
            over examples is zero. [num_first, num_seeds, num_examples]
        second: The same for the second models. [num_second, num_seeds, num_examples]
    """
    _, num_seeds, num_examples = first.shape
    of_means = _squared_distances(first.mean(axis=1), second.mean(axis=1))
    examples = of_means / (num_examples * (num_examples - 1))
    if num_seeds == 1:
        return CrossedErrors(examples, np.zeros_like(examples), num_examples)
    of_all = _squared_distances(*(part.reshape(len(part), -1) for part in (first, second)))
    freedom = (num_seeds - 1) * (num_examples - 1)
    rest = np.maximum(of_all - num_seeds * of_means, 0.0)
    return CrossedErrors(examples, rest / (freedom * num_seeds * num_examples), num_examples)


def _squared_distances(first: Array, second: Array) -> Array:
    """Return the squared distance of each row from each row of another table."""
    squares = [np.einsum("ij,ij->i", part, part) for part in (first, second)]
    return np.maximum(squares[0][:, None] + squares[1] - 2 * first @ second.T, 0.0)


def joint_p_values(
    mean: ArrayLike, seeds: ArrayLike, num_seeds: ArrayLike, errors: CrossedErrors
) -> Array:
    """Return two-sided p values over seeds and test examples together.

    `mean` are differences in percent points, [num_pairs]; `seeds` are their squared standard errors
    over seeds, [num_pairs], 0 with one seed.
    """
    variance, freedom = _joint(np.asarray(seeds), np.asarray(num_seeds), errors)
    return np.maximum(
        _p_values(mean, variance, freedom), _p_values(mean, seeds, _seed_freedom(num_seeds))
    )


def example_interval(
    differences: Sequence[float] | Array, errors: CrossedErrors
) -> ExampleInterval:
    """Return the interval of one mean difference.

    `differences` are those of pairs of seeds over all examples, in percent points.
    """
    observed = np.asarray(differences, dtype=np.float64)
    num, mean = len(observed), float(observed.mean())
    seeds = np.array([observed.var(ddof=1) / num if num > 1 else 0.0])
    variance, freedom = _joint(seeds, np.array([num]), errors)
    alone = scipy.special.stdtrit(_seed_freedom(num), 0.975) * np.sqrt(seeds)
    reach = float(np.maximum(scipy.special.stdtrit(freedom, 0.975) * np.sqrt(variance), alone)[0])
    return ExampleInterval(
        low=mean - reach,
        high=mean + reach,
        p_value=float(joint_p_values(mean, seeds, num, errors)[0]),
        num_seeds=num,
        num_examples=errors.num_examples,
        seed_error=math.sqrt(seeds[0]),
        example_error=math.sqrt(errors.examples[0]),
    )


def _joint(seeds: Array, num_seeds: Array, errors: CrossedErrors) -> tuple[Array, Array]:
    """Return the squared standard error and its degrees of freedom (Satterthwaite 1946)."""
    examples, shared = errors.examples, errors.shared
    variance = np.maximum(seeds + examples - shared, np.maximum(seeds, examples))
    of_examples = max(errors.num_examples - 1, 1)
    of_seeds = _seed_freedom(num_seeds)
    doubt = seeds**2 / of_seeds + examples**2 / of_examples
    doubt = doubt + shared**2 / (of_seeds * of_examples)
    freedom = np.divide(
        variance**2, doubt, out=np.full_like(variance, of_examples), where=doubt > 0
    )
    return variance, freedom


def _seed_freedom(num_seeds: ArrayLike) -> NDArray[np.float64]:
    return np.maximum(np.asarray(num_seeds, dtype=np.float64) - 1, 1)


def _p_values(mean: ArrayLike, variance: ArrayLike, freedom: ArrayLike) -> Array:
    """Return p values; without any spread 0, or 1 if there is no difference either."""
    distance = np.abs(mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        t_value = np.where(distance == 0, 0.0, distance / np.sqrt(variance))
    return 2 * scipy.special.stdtr(freedom, -t_value)
