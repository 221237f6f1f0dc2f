"""`curve.json`: what `biphasic study tune` tried, measured and chose."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from biphasic.records import Record

FORMAT = "biphasic.tune/1"
FLAT_NATS = 0.01
"""Rates whose loss is as close to the lowest are called equally good."""


class TrialRecord(Record):
    """A trial at one peak rate."""

    arm: str
    """Its name in the study of trials."""
    peak: PositiveFloat
    loss: float | None
    """What it is judged by, in nats per supervised token; None where it was lost."""
    heldout: dict[str, float] = Field(default_factory=dict)
    """Held-out losses at its end, by objective."""
    state: str
    """Identity of the state at its end."""
    lost: str = ""
    """Why it has no loss."""


class CurveRecord(Record):
    """All rates tried for one model and one objective, and the one chosen."""

    name: str
    """Short, such as `nano-mlm40`."""
    measure: str
    """What the loss is of, such as `MLM at 40 %`."""
    arms: tuple[str, ...]
    """Arms of the study that begin so."""
    trials: tuple[TrialRecord, ...]
    """By ascending rate."""
    choice: PositiveFloat | None
    """The peak rate with the lowest loss; None where every trial was lost."""
    equals: tuple[PositiveFloat, ...]
    """Other rates whose loss is within `FLAT_NATS` of the lowest."""
    edge: Literal["", "lowest", "highest"] = ""
    """Where the choice is the lowest or the highest of all rates tried, so that the best may lie
    beyond."""


class TuneRecord(Record):
    """A whole tuning."""

    format: Literal["biphasic.tune/1"]
    study: str
    """Name of the study."""
    share: PositiveFloat
    """Of the longest budget."""
    budget: PositiveInt
    """Optimizer steps of the longest schedule."""
    steps: PositiveInt
    """Optimizer steps of a trial."""
    warmup_steps: NonNegativeInt
    decay_steps: NonNegativeInt
    curves: tuple[CurveRecord, ...]
    untuned: dict[str, str] = Field(default_factory=dict)
    """Arms that keep their rate, and why."""
    later_schedules: tuple[str, ...] = ()
    """Tuned arms with a later phase that has a schedule of its own, which stays as it is."""
