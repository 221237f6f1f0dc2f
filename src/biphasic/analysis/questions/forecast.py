"""Forecasts of differences against what was measured."""

from __future__ import annotations

from dataclasses import dataclass

from biphasic.records import ForecastRecord

MISSES = 0.1
"""Share of outcomes outside a good forecaster's 90 % intervals."""


@dataclass(frozen=True)
class ForecastOutcome:
    """A forecast and the measured difference, in percentage points."""

    forecast: ForecastRecord
    measured: float

    @property
    def is_covered(self) -> bool:
        """Whether the interval holds the measured difference."""
        low, high = self.forecast.interval
        return low <= self.measured <= high

    @property
    def interval_score(self) -> float:
        """Width of the interval, plus 20 points for each point that it misses; lower is better.

        Reference: Gneiting and Raftery 2007, "Strictly proper scoring rules, prediction, and
        estimation", section 6.2.
        """
        low, high = self.forecast.interval
        missed = max(low - self.measured, self.measured - high, 0.0)
        return high - low + 2 / MISSES * missed
