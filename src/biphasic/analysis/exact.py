"""Tests over pairs that assume nothing of the spread, and how small their p values can get.

With n pairs there are 2**n ways to choose signs, all alike where two arms do not differ, so no
two-sided p value can be below 2 / 2**n: 0.0625 with five. Such a test can decide nothing, and its
floor is what there is to report.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from biphasic.seeds import derive_seed

_EXACT_UP_TO = 16
"""Pairs whose signs are all tried; with more, a fixed sample of them is."""
_SAMPLES = 99_999


@dataclass(frozen=True)
class ExactTest:
    """A two-sided test over pairs.

    Attributes:
        p_value: Chance of a difference at least as great where arms do not differ.
        floor: The smallest p value that as many pairs can give.
    """

    p_value: float
    floor: float

    def can_decide(self, *, level: float = 0.05, family_size: int = 1) -> bool:
        """Tell whether any outcome could be significant, corrected for a family of comparisons."""
        return self.floor * family_size <= level


def sign_flip_test(differences: Sequence[float]) -> ExactTest | None:
    """Test whether paired differences are centred on zero, by flipping their signs.

    Exact up to sixteen pairs; beyond, 99,999 choices of signs drawn with a fixed seed. None with
    fewer than two pairs, which can only give p = 1.

    Reference: Fisher 1935, "The design of experiments", section 21.
    """
    from scipy.stats import permutation_test  # noqa: PLC0415 - slow to import, seldom needed

    num = len(differences)
    if num < 2:
        return None
    values = np.asarray(differences, dtype=np.float64)
    count = math.inf if num <= _EXACT_UP_TO else _SAMPLES
    found = permutation_test(
        (values, np.zeros(num)),
        lambda first, second, axis: np.mean(first - second, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=count,
        batch=4096,
        rng=np.random.default_rng(derive_seed("sign flips", num)),
    )
    floor = 2.0 ** (1 - num) if num <= _EXACT_UP_TO else 1 / (_SAMPLES + 1)
    return ExactTest(float(found.pvalue), floor)


def wilcoxon_test(differences: Sequence[float]) -> ExactTest | None:
    """Test whether paired differences are centred on zero, by the ranks of their sizes.

    Exact. None where ranks say nothing or not exactly: with fewer than two pairs, with a difference
    of zero, or where two are equally great.

    Reference: Wilcoxon 1945, "Individual comparisons by ranking methods".
    """
    from scipy.stats import wilcoxon  # noqa: PLC0415 - slow to import, seldom needed

    values = np.asarray(differences, dtype=np.float64)
    sizes = np.abs(values)
    if len(values) < 2 or not sizes.all() or len(np.unique(sizes)) < len(sizes):
        return None
    found = wilcoxon(values, method="exact")
    return ExactTest(float(found.pvalue), 2.0 ** (1 - len(values)))
