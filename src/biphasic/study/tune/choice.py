"""The choice of the best peak rate and of the next rate to try."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from biphasic.analysis.tune_record import FLAT_NATS, TrialRecord
from biphasic.errors import ConfigError

LADDER = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Default rates to try, as factors of the study's rate."""
MOST_RUNGS = 3
"""Maximum number of rates to try beyond the list when its lowest or highest rate is the best."""
_DIGITS = 12  # of rates beyond the list, which are products

Edge = Literal["", "lowest", "highest"]


def default_rates(peak: float) -> tuple[float, ...]:
    """Return the rates to try around a study's peak rate."""
    return tuple(factor * peak for factor in LADDER)


def parse_rates(text: str) -> tuple[float, ...]:
    """Parse a list of rates such as `5e-4,1e-3,2e-3`.

    Raises:
        ConfigError: A rate is not a positive number, or is listed twice.
    """
    try:
        rates = tuple(sorted(float(part) for part in text.split(",")))
    except ValueError:
        rates = ()
    if not rates or not all(0 < rate < float("inf") for rate in rates):
        raise ConfigError(f"--rates: expected positive numbers such as 5e-4,1e-3 (got '{text}')")
    if len(set(rates)) < len(rates):
        raise ConfigError(f"--rates: lists a rate twice ({text})")
    return rates


def best(trials: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the trial with the lowest loss; ties go to the lower rate."""
    finished = [(trial.loss, trial.peak, trial) for trial in trials if trial.loss is not None]
    return min(finished, key=lambda entry: entry[:2])[2] if finished else None


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
    """Return whether the best rate is the lowest or the highest of all rates tried.

    A diverged trial counts as a worse one. If all trials diverged, the best rate is lower.
    """
    chosen = best(trials)
    rates = sorted(trial.peak for trial in trials)
    if chosen is None or chosen.peak == rates[0]:
        return "lowest"
    return "highest" if chosen.peak == rates[-1] else ""


def next_rate(trials: Sequence[TrialRecord]) -> float | None:
    """Return the next rate to try beyond the best one; None if the best one is not at an edge.

    It extends the list by the ratio of the two rates at that edge.
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
