"""`curve.json`: the trials, measurements and choices of `biphasic study tune`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from biphasic.records import Record

FORMAT = "biphasic.tune/1"
TuneBy = Literal["beginning", "arm"]
"""What gets a rate of its own."""
FLAT_NATS = 0.01
"""Rates whose loss is this close to the lowest count as equally good."""


class TrialRecord(Record):
    """A trial at one peak rate."""

    arm: str
    """Its name in the study of trials."""
    peak: PositiveFloat
    loss: float | None
    """Loss that decides, in nats per supervised token; None if the trial failed."""
    heldout: dict[str, float] = Field(default_factory=dict)
    """Held-out losses at its end, by objective."""
    state: str
    """Identity of the state at its end."""
    lost: str = ""
    """Why it has no loss."""


class CurveRecord(Record):
    """All rates tried for one beginning or arm, and the chosen one."""

    name: str
    """Short name, such as `nano-mlm40`."""
    measure: str
    """Name of the loss, such as `MLM at 40 %`."""
    arms: tuple[str, ...]
    """Arms of the study that get this rate; trials have the settings and seeds of the first."""
    trials: tuple[TrialRecord, ...]
    """Trials by ascending rate."""
    choice: PositiveFloat | None
    """The peak rate with the lowest loss; None if every trial failed."""
    equals: tuple[PositiveFloat, ...]
    """Other rates whose loss is within `FLAT_NATS` of the lowest."""
    edge: Literal["", "lowest", "highest"] = ""
    """Set if the choice is the lowest or highest of all rates tried, so the best may lie beyond."""


class TuneRecord(Record):
    """A whole tuning."""

    format: Literal["biphasic.tune/1"]
    study: str
    """Name of the study."""
    by: TuneBy = "beginning"
    """What got a rate of its own. Trials of beginnings train the first objective; trials of arms
    train all phases, and the last objective decides."""
    share: PositiveFloat
    """Share of the longest budget used by a trial."""
    budget: PositiveInt
    """Optimizer steps of the longest schedule."""
    steps: PositiveInt
    """Optimizer steps of a trial; of the longest, if arms have different lengths."""
    warmup_steps: NonNegativeInt
    decay_steps: NonNegativeInt
    curves: tuple[CurveRecord, ...]
    untuned: dict[str, str] = Field(default_factory=dict)
    """Arms that keep their rate, and why."""
    later_schedules: tuple[str, ...] = ()
    """Tuned arms with a later phase whose own schedule is not changed."""
