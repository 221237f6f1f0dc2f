"""Which peak rate is chosen, and which rates are tried next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from biphasic.analysis.tune_record import FLAT_NATS, TrialRecord
from biphasic.errors import ConfigError

LADDER = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Rates that are tried by default, as factors on the file's own."""
MOST_RUNGS = 3
"""Rates that are tried beyond a list whose edge is the best."""
_DIGITS = 12  # of rates beyond a list, which are products

Edge = Literal["", "lowest", "highest"]


def default_rates(peak: float) -> tuple[float, ...]:
    """Return the rates to try around the peak that a file has."""
    return tuple(factor * peak for factor in LADDER)


def parse_rates(text: str) -> tuple[float, ...]:
    """Read rates as people list them: `5e-4,1e-3,2e-3`.

    Raises:
        ConfigError: One is no positive number, or is there twice.
    """
    try:
        rates = tuple(sorted(float(part) for part in text.split(",")))
    except ValueError:
        rates = ()
    if not rates or not all(0 < rate < float("inf") for rate in rates):
        raise ConfigError(f"--rates: expected positive numbers such as 5e-4,1e-3 (got '{text}')")
    if len(set(rates)) < len(rates):
        raise ConfigError(f"--rates: a rate is given twice ({text})")
    return rates


def best(trials: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the trial with the lowest loss, of equal ones that with the lower rate."""
    finished = [(trial.loss, trial.peak, trial) for trial in trials if trial.loss is not None]
    return min(finished, key=lambda each: each[:2])[2] if finished else None


def as_good(trials: Sequence[TrialRecord]) -> tuple[float, ...]:
    """Return the other rates whose loss is within `FLAT_NATS` of the lowest."""
    chosen = best(trials)
    if chosen is None or chosen.loss is None:
        return ()
    return tuple(
        trial.peak
        for trial in trials
        if trial is not chosen and trial.loss is not None and trial.loss <= chosen.loss + FLAT_NATS
    )


def edge_of(trials: Sequence[TrialRecord]) -> Edge:
    """Tell whether the best rate is the lowest or the highest of all that were tried.

    A lost run beyond the best one bounds it as a worse one does. Where all runs were lost, what
    is sought lies below them.
    """
    chosen = best(trials)
    rates = sorted(trial.peak for trial in trials)
    if chosen is None or chosen.peak == rates[0]:
        return "lowest"
    return "highest" if chosen.peak == rates[-1] else ""


def next_rate(trials: Sequence[TrialRecord]) -> float | None:
    """Return the rate to try next: one rung beyond the best one, or None where it lies inside.

    Rungs are as far apart as the two rates at that edge.
    """
    edge = edge_of(trials)
    if not edge:
        return None
    rates = sorted(trial.peak for trial in trials)
    if edge == "lowest":
        ratio = rates[1] / rates[0] if len(rates) > 1 else 2.0
        return float(f"{rates[0] / ratio:.{_DIGITS}g}")
    ratio = rates[-1] / rates[-2] if len(rates) > 1 else 2.0
    return float(f"{rates[-1] * ratio:.{_DIGITS}g}")
