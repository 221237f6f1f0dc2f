"""Exact tests over pairs without assumptions on the spread, and their smallest p values.

With n pairs there are 2**n choices of signs, equally likely if two arms do not differ, so no
two-sided p value can be below 2 / 2**n: 0.0625 with five. Such a test cannot decide anything, and
only its floor is reported.

scipy has both tests, but takes milliseconds for each and a second to import. A report makes
thousands of them, so they are implemented here; tests compare the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from biphasic.seeds import stream

_EXACT_UP_TO = 16
"""Maximum pairs for which all signs are tried; with more, a fixed sample is used."""
_SAMPLES = 99_999
_TIED = 1e-12
"""Sums this close, relative to all sizes together, differ only by rounding."""


@dataclass(frozen=True)
class ExactTest:
    """A two-sided test over pairs.

    Attributes:
        p_value: Probability of a difference at least as large if arms do not differ.
        floor: The smallest possible p value for this number of pairs.
    """

    p_value: float
    floor: float


def sign_flip_test(differences: Sequence[float]) -> ExactTest | None:
    """Test whether paired differences are centred on zero, by flipping their signs.

    Exact up to sixteen pairs; beyond, 99,999 choices of signs drawn with a fixed seed. None with
    fewer than two pairs, which can only give p = 1.

    Reference: Fisher 1935, "The design of experiments", section 21.
    """
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
    """Test whether paired differences are centred on zero, by the ranks of their sizes.

    Exact. None if ranks are not informative or not exact: with fewer than two pairs, a difference
    of zero, or two differences of equal size.

    Reference: Wilcoxon 1945, "Individual comparisons by ranking methods".
    """
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
