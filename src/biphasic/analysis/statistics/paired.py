"""Exact tests, effect sizes and power of paired differences.

With n pairs there are 2**n choices of signs, equally likely if two arms do not differ, so no
two-sided p value can be below 2 / 2**n: 0.0625 with five. Such a test cannot decide anything, and
only its floor is reported.

scipy has both exact tests, but takes milliseconds for each and a second to import. A report makes
thousands of them, so they are implemented here; tests compare the two.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, cast

import numpy as np
import scipy
from numpy.typing import NDArray

from biphasic.analysis.estimate import LEVEL, UPPER
from biphasic.seeds import stream

POWER = 0.8
NO_SPREAD = 1e-10  # percentage points; one answer in ten million is a hundred thousand times larger
WIDEST = 9.0  # standard deviations; the probability of a larger normal value is 2e-19
_EXACT_UP_TO = 16  # maximum pairs for which all signs are tried; with more, a fixed sample is used
_SAMPLES = 99_999
_TIED = 1e-12  # sums this close, relative to all sizes together, differ only by rounding


@dataclass(frozen=True)
class ExactTest:
    """A two-sided test over pairs; `floor` is its smallest p value for this number of pairs."""

    p_value: float
    floor: float


def sign_flip_test(differences: Sequence[float]) -> ExactTest | None:
    """Test whether paired differences are centred on zero, by flipping their signs."""
    # Exact up to sixteen pairs; beyond, 99,999 choices of signs drawn with a fixed seed. None with
    # fewer than two pairs, which can only give p = 1. Reference: Fisher 1935, "The design of
    # experiments", section 21.
    num = len(differences)
    if num < 2:
        return None
    values = np.asarray(differences, dtype=np.float64)
    enough = abs(values.sum()) - _TIED * np.abs(values).sum()
    if num <= _EXACT_UP_TO:
        share = float((np.abs(_all_signs(num) @ values) >= enough).mean())
        return ExactTest(share, 2.0 ** (1 - num))
    as_great = 0
    bits = stream("sign flips", num)
    for start in range(0, _SAMPLES, 4096):
        shape = (min(4096, _SAMPLES - start), num)
        signs = 2.0 * np.random.Generator(bits).integers(2, size=shape) - 1
        as_great += int((np.abs(signs @ values) >= enough).sum())
    # The observed signs are one of the choices, so p is never zero (Phipson and Smyth 2010).
    return ExactTest((as_great + 1) / (_SAMPLES + 1), 1 / (_SAMPLES + 1))


@lru_cache(maxsize=_EXACT_UP_TO)
def _all_signs(num: int) -> NDArray[np.float64]:
    """Return every choice of signs, [2**num, num]."""
    bits = np.arange(2**num)[:, None] >> np.arange(num) & 1
    return 2.0 * bits - 1


def wilcoxon_test(differences: Sequence[float]) -> ExactTest | None:
    """Test whether paired differences are centred on zero, by the ranks of their sizes."""
    # Exact. None if ranks are not informative or not exact: with fewer than two pairs, a difference
    # of zero, or two differences of equal size. Reference: Wilcoxon 1945, "Individual comparisons
    # by ranking methods".
    values = np.asarray(differences, dtype=np.float64)
    sizes = np.abs(values)
    if len(values) < 2 or not sizes.all() or len(np.unique(sizes)) < len(sizes):
        return None
    ranks = 1 + np.argsort(np.argsort(sizes))
    observed = int(ranks[values > 0].sum())
    below = _rank_sums(len(values))
    tails = below[observed], 1 - (below[observed - 1] if observed else 0.0)
    return ExactTest(min(1.0, 2 * min(tails)), 2.0 ** (1 - len(values)))


@lru_cache(maxsize=64)
def _rank_sums(num: int) -> tuple[float, ...]:
    """Return the probability that the sum of positive ranks is at most 0, 1, 2, ..."""
    chances = np.ones(1)
    for rank in range(1, num + 1):
        longer = np.zeros(len(chances) + rank)
        longer[: len(chances)] += chances / 2
        longer[rank:] += chances / 2
        chances = longer
    return tuple(np.cumsum(chances).tolist())


@dataclass(frozen=True)
class EffectSize:
    """Mean of paired differences over their standard deviation, with its 95 % interval."""

    value: float
    low: float
    high: float


def deviation(differences: Sequence[float]) -> float:
    """Return the standard deviation; 0 with fewer than two values, or if only rounding differs."""
    spread = statistics.stdev(differences) if len(differences) > 1 else 0.0
    return spread if spread > NO_SPREAD else 0.0


def effect_size(differences: Sequence[float]) -> EffectSize | None:
    """Return Cohen's d of paired differences; None with fewer than two, or without spread."""
    # The interval holds the effect sizes consistent with the observed t: those whose noncentral t
    # distribution has it between the 2.5 % and 97.5 % quantiles. Reference: Steiger and Fouladi
    # 1997, "Noncentrality interval estimation".
    num, spread = len(differences), deviation(differences)
    if not spread:
        return None
    root = math.sqrt(num)
    value = statistics.fmean(differences) / spread
    ends = [_noncentrality(num - 1, value * root, share) / root for share in (UPPER, LEVEL / 2)]
    return EffectSize(value, *ends)


@lru_cache(maxsize=4096)
def _noncentrality(freedom: int, t_value: float, share: float) -> float:
    """Return the noncentrality for which a share of all t values is below the given one."""
    # The spread is about sqrt(1 + t**2 / (2 * freedom)): twelve times it encloses any quantile.
    reach = 12 * math.sqrt(1 + t_value**2 / (2 * freedom))
    return root(
        lambda nc: noncentral_t(t_value, freedom, nc) - share, t_value - reach, t_value + reach
    )


def root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a function is zero, between two ends of opposite sign."""
    from scipy.optimize import brentq  # noqa: PLC0415 - slow to load, and rarely needed

    return float(cast("float", brentq(function, low, high)))


def noncentral_t(t_value: float, freedom: float, noncentrality: float) -> float:
    """Return the probability that a noncentral t variable is below a value."""
    # The variable is (z + noncentrality) / s: z standard normal, s**2 * freedom chi-square. The
    # integral uses Gauss-Legendre quadrature over whichever of the two has a smooth integrand;
    # `scipy.special.nctdtr` returns NaN far in the tails.
    if t_value < 0:
        return 1.0 - noncentral_t(-t_value, freedom, -noncentrality)
    nodes, shares = quadrature(400)
    if t_value >= 1:
        z = WIDEST * nodes
        weights = WIDEST * shares * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
        s = np.maximum((z + noncentrality) / t_value, 0.0)
        return float(weights @ scipy.special.chdtrc(freedom, freedom * s**2))
    longest = 1 + WIDEST / math.sqrt(freedom)
    s = longest * (1 + nodes) / 2
    half = freedom / 2
    log_density = math.log(2) + half * math.log(half) - scipy.special.gammaln(half) - half * s**2
    density = np.exp(log_density + (freedom - 1) * np.log(s))
    return float(longest / 2 * shares * density @ scipy.special.ndtr(t_value * s - noncentrality))


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

    upper = max(one.critical * one.error for one in criteria)
    while shortfall(upper) > 0:
        upper *= 2
    return root(shortfall, 0.0, upper)
