"""The power of a paired t test by itself, by the noncentral t distribution."""

from __future__ import annotations

import math

import scipy

from biphasic.analysis.estimate import UPPER
from biphasic.analysis.statistics.paired import Criterion, detectable


def detectable_effect(num_pairs: int) -> float:
    """Return the difference found with 80 % power, in deviations of the pairs' differences."""
    critical = float(scipy.special.stdtrit(num_pairs - 1, UPPER))
    return detectable((Criterion(1 / math.sqrt(num_pairs), num_pairs - 1, critical),))
