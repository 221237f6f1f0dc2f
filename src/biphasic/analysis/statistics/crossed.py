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

from dataclasses import dataclass, replace

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class CrossedErrors:
    """Squared standard errors of mean differences over test examples, one per pair."""

    examples: Array  # NaN where examples are unknown
    shared: Array  # the part that is the interaction of seeds and examples
    num_examples: int  # of all datasets together for an average
    num_clusters: int  # those drawn independently: clusters of examples, or the examples
    freedom: Array | float  # degrees of freedom of `examples`


# Of pairs whose test examples are unknown: seeds alone decide.
NO_EXAMPLES = CrossedErrors(np.zeros(1), np.zeros(1), 0, 0, 1)


def squared_errors(first: Array, second: Array) -> CrossedErrors:
    """Return the errors of each pair of first and second models, [num_first, num_second]."""
    # `first` and `second` are what each test example, or each cluster of them, adds to each model's
    # score with each seed, zero on average: [num_models, num_seeds, num_examples].
    _, num_seeds, num_examples = first.shape
    of_means = _squared_distances(first.mean(axis=1), second.mean(axis=1))
    examples = of_means / (num_examples * (num_examples - 1))
    known = CrossedErrors(
        examples, np.zeros_like(examples), num_examples, num_examples, num_examples - 1
    )
    if num_seeds == 1:
        return known
    of_all = _squared_distances(*(part.reshape(len(part), -1) for part in (first, second)))
    freedom = (num_seeds - 1) * (num_examples - 1)
    rest = np.maximum(of_all - num_seeds * of_means, 0.0)
    return replace(known, shared=rest / (freedom * num_seeds * num_examples))


def _squared_distances(first: Array, second: Array) -> Array:
    """Return the squared distance of each row from each row of another table."""
    squares = [np.einsum("ij,ij->i", part, part) for part in (first, second)]
    return np.maximum(squares[0][:, None] + squares[1] - 2 * first @ second.T, 0.0)


def joint_p_values(mean: ArrayLike, seeds: Array, freedom: Array, errors: CrossedErrors) -> Array:
    """Return two-sided p values of differences over seeds and test examples, [num_pairs]."""
    # `seeds` are squared standard errors over seeds, 0 with one seed.
    variance, joint_freedom = joint_errors(seeds, freedom, errors)
    return np.maximum(p_values(mean, variance, joint_freedom), p_values(mean, seeds, freedom))


def joint_errors(seeds: Array, of_seeds: Array, errors: CrossedErrors) -> tuple[Array, Array]:
    """Return squared standard errors over seeds and examples, with Satterthwaite's freedom."""
    examples, shared = errors.examples, errors.shared
    variance = np.maximum(seeds + examples - shared, np.maximum(seeds, examples))
    of_examples = np.maximum(errors.freedom, 1)
    doubt = seeds**2 / of_seeds + examples**2 / of_examples
    doubt = doubt + shared**2 / (of_seeds * of_examples)
    freedom = np.divide(
        variance**2, doubt, out=np.full_like(variance, of_examples), where=doubt > 0
    )
    return variance, freedom


def are_alike(mean: ArrayLike, example_error: ArrayLike) -> NDArray[np.bool_]:
    """Return where all test examples differ by the same amount, so their spread is unknown."""
    # Up to rounding. Without a difference, there is nothing to find.
    return (np.asarray(mean) != 0) & (np.asarray(example_error) <= 1e-6 * np.abs(mean))


def seed_freedom(num_seeds: ArrayLike) -> Array:
    """Return the degrees of freedom of pairs of seeds; 1 with one seed."""
    return np.maximum(np.asarray(num_seeds, dtype=np.float64) - 1, 1)


def t_values(mean: ArrayLike, variance: ArrayLike) -> Array:
    """Return sizes of differences in standard errors: infinite without any spread."""
    distance = np.abs(mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(distance == 0, 0.0, distance / np.sqrt(variance))


def p_values(mean: ArrayLike, variance: ArrayLike, freedom: ArrayLike) -> Array:
    """Return p values; without any spread 0, or 1 if there is no difference either."""
    return 2 * scipy.special.stdtr(freedom, -t_values(mean, variance))
