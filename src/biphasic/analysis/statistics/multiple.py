"""Correction for multiple comparisons."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def holm(p_values: Sequence[float] | NDArray[np.float64]) -> list[float]:
    """Correct the p values of a family of comparisons, in the order given.

    The smallest of m is multiplied by m, the next by m - 1, and so on; none may be lower than the
    one before it, or exceed 1.

    Reference: Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    factors = np.arange(len(values), 0, -1)
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum(np.maximum.accumulate(values[order] * factors), 1.0)
    return adjusted.tolist()
