"""Tukey's studentized range: the correction for all pairs of arms with a pooled variance.

`scipy.stats.studentized_range` takes milliseconds for a value and a second to import; a report
needs thousands of values, each with its own degrees of freedom. Tests compare the two.

Reference: Tukey 1953, "The problem of multiple comparisons"; Hayter 1984 for unequal variances of
the pairs (Tukey-Kramer).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from biphasic.analysis.estimate import LEVEL
from biphasic.analysis.statistics.paired import WIDEST, quadrature, root

Array = NDArray[np.float64]

_RANGES = np.linspace(0.0, 60.0, 6001)
_AT_ONCE = 4096


def range_p_values(ranges: ArrayLike, num_arms: int, freedom: ArrayLike) -> Array:
    """Return the probability of a studentized range at least as large as each, [num]."""
    ranges, freedom = np.broadcast_arrays(np.atleast_1d(ranges), np.atleast_1d(freedom))
    parts = [
        _p_values(ranges[at : at + _AT_ONCE], num_arms, freedom[at : at + _AT_ONCE])
        for at in range(0, len(ranges), _AT_ONCE)
    ]
    return np.concatenate(parts) if parts else np.empty(0)


@lru_cache(maxsize=1024)
def critical_range(num_arms: int, freedom: float) -> float:
    """Return the studentized range that equal arms exceed with a probability of `LEVEL`."""

    def excess(value: float) -> float:
        return float(range_p_values(value, num_arms, freedom)[0]) - LEVEL

    upper = 4.0
    while excess(upper) > 0:
        upper *= 2
    return root(excess, 0.0, upper)


def _p_values(ranges: Array, num_arms: int, freedom: Array) -> Array:
    """Integrate the range's distribution over that of the standard deviation."""
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


@lru_cache(maxsize=64)
def _log_tail(num_arms: int) -> Array:
    """Return the log of the probability that a range of normal values exceeds `_RANGES`."""
    nodes, weights = quadrature(160)
    z = WIDEST * nodes
    density = WIDEST * weights * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    below = scipy.special.ndtr(z)
    share = scipy.special.ndtr(z - _RANGES[:, None]) / below  # (ranges, nodes)
    # 1 - H(w), without the cancellation of a probability near 1.
    with np.errstate(divide="ignore"):
        apart = -np.expm1((num_arms - 1) * np.log1p(-np.minimum(share, 1.0)))
        tail = num_arms * (apart * below ** (num_arms - 1)) @ density
        return np.log(np.maximum(tail, 1e-300))
