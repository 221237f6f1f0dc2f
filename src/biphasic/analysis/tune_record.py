"""`curve.json`: the trials, measurements and choices of `biphasic study tune`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from biphasic.records import Record

FORMAT = "biphasic.tune/1"
TuneBy = Literal["objective", "arm"]  # what gets a rate of its own
FLAT_NATS = 0.01  # rates whose loss is this close to the lowest count as equally good


class TrialRecord(Record):
    """A trial at one peak rate."""

    arm: str  # its name in the study of trials
    peak: PositiveFloat
    loss: float | None  # loss that decides; None if the trial failed
    # Held-out losses at its end, by objective.
    heldout: dict[str, float] = Field(default_factory=dict)
    state: str  # identity of the state at its end
    lost: str = ""  # why it has no loss


class CurveRecord(Record):
    """All rates tried for one objective or arm, and the chosen one."""

    name: str  # short name, such as `nano-mlm40`
    measure: str  # name of the loss, such as `MLM at 40 %`
    unit: str = "nats per token"  # unit of the loss
    # Arms of the study that get this rate; trials have the settings and seeds of the first.
    arms: tuple[str, ...]
    trials: tuple[TrialRecord, ...]  # trials by ascending rate
    choice: PositiveFloat | None  # the peak rate with the lowest loss; None if every trial failed
    equals: tuple[PositiveFloat, ...]  # other rates whose loss is within `FLAT_NATS` of the lowest
    # Set if the choice is the lowest or highest of all rates tried, so the best may lie beyond.
    edge: Literal["", "lowest", "highest"] = ""


class TuneRecord(Record):
    """A whole tuning."""

    format: Literal["biphasic.tune/1"]
    study: str  # name of the study
    # What got a rate of its own. Trials of objectives train an arm's first; trials of arms
    # train all phases, and the last objective decides.
    by: TuneBy = "objective"
    share: PositiveFloat  # share of the longest budget used by a trial
    budget: PositiveInt  # optimizer steps of the longest schedule
    steps: PositiveInt  # optimizer steps of a trial; of the longest, if arms have different lengths
    warmup_steps: NonNegativeInt
    decay_steps: NonNegativeInt
    curves: tuple[CurveRecord, ...]
    untuned: dict[str, str] = Field(default_factory=dict)  # arms that keep their rate, and why
    # Tuned arms with a later phase whose own schedule is not changed.
    later_schedules: tuple[str, ...] = ()
