"""Distributions of the tests: noncentral t for their power, and Tukey's studentized range.

`scipy.stats.studentized_range` takes milliseconds for a value and a second to import; a report
needs thousands of values, each with its own degrees of freedom. Tests compare the two.

Reference: Tukey 1953, "The problem of multiple comparisons"; Hayter 1984 for unequal variances of
the pairs (Tukey-Kramer).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, cast

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from biphasic.analysis.estimate import LEVEL

POWER = 0.8
NO_SPREAD = 1e-10  # percentage points; one answer in ten million is a hundred thousand times larger
WIDEST = 9.0  # standard deviations; the probability of a larger normal value is 2e-19


def deviation(differences: Sequence[float]) -> float:
    """Return the standard deviation; 0 with fewer than two values, or if only rounding differs."""
    spread = statistics.stdev(differences) if len(differences) > 1 else 0.0
    return spread if spread > NO_SPREAD else 0.0


def root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a function is zero, between two ends of opposite sign."""
    from scipy.optimize import brentq  # noqa: PLC0415 - slow to load, and rarely needed

    return float(cast("float", brentq(function, low, high)))


def noncentral_t(t_value: float, freedom: float, noncentrality: float) -> float:
    """Return the probability that a noncentral t variable is below a value."""
    # The variable is (z + noncentrality) / s: z standard normal, s**2 * freedom chi-square. The
    # integral uses Gauss-Legendre quadrature over whichever of the two has a smooth integrand: over
    # z, that is almost a step with many degrees of freedom. `scipy.special.nctdtr` returns NaN far
    # in the tails.
    if t_value < 0:
        return 1.0 - noncentral_t(-t_value, freedom, -noncentrality)
    nodes, shares = quadrature(400)
    if t_value >= 1 and freedom <= 500:
        z = WIDEST * nodes
        weights = WIDEST * shares * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
        s = np.maximum((z + noncentrality) / t_value, 0.0)
        return float(weights @ scipy.special.chdtrc(freedom, freedom * s**2))
    shortest = max(1 - WIDEST / math.sqrt(freedom), 0.0)
    length = 1 + WIDEST / math.sqrt(freedom) - shortest
    s = shortest + length * (1 + nodes) / 2
    half = freedom / 2
    log_density = math.log(2) + half * math.log(half) - scipy.special.gammaln(half) - half * s**2
    density = np.exp(log_density + (freedom - 1) * np.log(s))
    return float(length / 2 * shares * density @ scipy.special.ndtr(t_value * s - noncentrality))


@lru_cache(maxsize=2)
def quadrature(num: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return nodes and weights of the Gauss-Legendre rule on (-1, 1)."""
    return np.polynomial.legendre.leggauss(num)


class Criterion(NamedTuple):
    """A t test that a difference must pass; `critical` is the smallest t value that passes."""

    error: float
    freedom: float
    critical: float

    def miss(self, difference: float) -> float:
        """Return the probability that a true difference does not pass."""
        noncentrality = difference / self.error
        return noncentral_t(self.critical, self.freedom, noncentrality) - noncentral_t(
            -self.critical, self.freedom, noncentrality
        )


def detectable(criteria: Sequence[Criterion], *, other_misses: float = 0.0) -> float:
    """Return the smallest difference that passes all criteria with a probability of `POWER`."""
    # Probabilities of misses are added, so the power may be a little higher; `other_misses` is that
    # of a miss for another reason.
    # In units of the first standard error, most pairs of a study ask for the same number.
    unit = criteria[0].error
    relative = tuple(one._replace(error=one.error / unit) for one in criteria)
    return unit * _detectable(relative, other_misses)


@lru_cache(maxsize=4096)
def _detectable(criteria: tuple[Criterion, ...], other_misses: float) -> float:
    def shortfall(difference: float) -> float:
        return other_misses + sum(one.miss(difference) for one in criteria) - (1 - POWER)

    # A difference of `critical` standard errors is found about every other time.
    upper = max(one.critical * one.error for one in criteria)
    while shortfall(upper) > 0:
        upper *= 2
    return root(shortfall, 0.0, upper)


Array = NDArray[np.float64]

_RANGES = np.linspace(0.0, 60.0, 6001)


def range_p_values(ranges: ArrayLike, num_arms: int, freedom: ArrayLike) -> Array:
    """Return the probability of a studentized range at least as large as each, [num]."""
    ranges, freedom = np.broadcast_arrays(np.atleast_1d(ranges), np.atleast_1d(freedom))
    # Integrates the range's distribution over that of the standard deviation.
    nodes, weights = quadrature(160)
    # The standard deviation of s is about 1 / sqrt(2 * freedom).
    reach = WIDEST / np.sqrt(freedom)
    low, high = np.maximum(1 - reach, 0.0), 1 + reach
    s = low[:, None] + (high - low)[:, None] * (1 + nodes) / 2  # (num, nodes)
    half = freedom[:, None] / 2
    with np.errstate(divide="ignore"):
        log_density = (2 * half - 1) * np.log(s) - half * s**2
    constant = np.log(2) + half * np.log(half) - scipy.special.gammaln(half)
    density = np.exp(constant + log_density) * (high - low)[:, None] / 2
    tails = np.exp(np.interp(ranges[:, None] * s, _RANGES, _log_tail(num_arms)))
    return np.clip((density * tails) @ weights, 0.0, 1.0)


@lru_cache(maxsize=1024)
def critical_range(num_arms: int, freedom: float) -> float:
    """Return the studentized range that equal arms exceed with a probability of `LEVEL`."""

    def excess(value: float) -> float:
        return float(range_p_values(value, num_arms, freedom)[0]) - LEVEL

    upper = 4.0
    while excess(upper) > 0:
        upper *= 2
    return root(excess, 0.0, upper)


@lru_cache(maxsize=64)
def _log_tail(num_arms: int) -> Array:
    """Return the log of the probability that a range of normal values exceeds `_RANGES`."""
    nodes, weights = quadrature(160)
    z = WIDEST * nodes
    density = WIDEST * weights * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    below = scipy.special.ndtr(z)
    # By the largest value z: the share of lower values that are more than a range below it.
    share = scipy.special.ndtr(z - _RANGES[:, None]) / below  # (ranges, nodes)
    # 1 - H(w), without the cancellation of a probability near 1.
    with np.errstate(divide="ignore"):
        apart = -np.expm1((num_arms - 1) * np.log1p(-np.minimum(share, 1.0)))
        tail = num_arms * (apart * below ** (num_arms - 1)) @ density
        return np.log(np.maximum(tail, 1e-300))
