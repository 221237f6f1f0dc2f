"""Trials of a tuning: their record (`curve.json`), and loss by peak rate as CSV and as a figure."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pandas import DataFrame
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from biphasic.analysis.figures.chart import Axis, Chart, Panel, points_of, ticks_at
from biphasic.analysis.figures.draw import Layout, draw, to_bytes
from biphasic.analysis.text import csv_text
from biphasic.palette import distinct_styles
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


_NAME = "tune-curve"
_COLUMNS = ("name", "measure", "peak", "loss", "is_chosen", "lost", "state")
_LAYOUT = Layout(columns=2, width=3.6, height=2.4, letters=40)
_TALLEST_NATS = 1.0  # losses further above the lowest are drawn at this height


def curve_csv(record: TuneRecord) -> str:
    """Return the trials of a tuning as CSV; floats round-trip exactly."""
    rows = [
        (curve.name, curve.measure, trial.peak, trial.loss,
         "yes" if trial.peak == curve.choice else "", trial.lost, trial.state)
        for curve in record.curves
        for trial in curve.trials
    ]  # fmt: skip
    return csv_text(_COLUMNS, rows)


def draw_curves(record: TuneRecord) -> dict[str, bytes]:
    """Draw a tuning; return the content of each file by its suffix."""
    figure = draw(_chart(record), _LAYOUT)
    return {ending: to_bytes(figure, ending, name=_NAME) for ending in ("png", "svg")}


def _chart(record: TuneRecord) -> Chart:
    """Return curves and chosen trials; at the upper edge, those that diverged or are higher."""
    styles, rows = distinct_styles([curve.name for curve in record.curves]), []
    panels: dict[str, Panel] = {}
    for curve in record.curves:
        key, style = curve.measure, styles[curve.name]
        panels.setdefault(key, Panel(key, f"Held-out {key}", curve.unit))
        alike = (trial for one in record.curves if one.measure == key for trial in one.trials)
        top = min((t.loss for t in alike if t.loss is not None), default=0.0) + _TALLEST_NATS
        low = {t.peak: t.loss for t in curve.trials if t.loss is not None and t.loss <= top}
        label = f"{curve.name}: {'none' if curve.choice is None else f'{curve.choice:.3g}'}"
        chosen, high = replace(style, marker="D", is_hollow=True), replace(style, marker="x")
        rows += [(key, label, label, style, *point, True) for point in low.items()]
        rows += [(key, "chosen", label, chosen, peak, loss, False)
                 for peak, loss in low.items() if peak == curve.choice]  # fmt: skip
        for trial in curve.trials:
            if trial.peak not in low:
                lost = "diverged" if trial.loss is None else f"{trial.loss:.3g}, higher"
                point = trial.peak, top, False
                rows.append((key, lost if low else label, label, high, *point))
    columns = ["panel", "series", "line", "style", "x", "mean", "is_connected"]
    points = points_of(DataFrame(rows, columns=columns))
    axis = Axis("peak rate", "log", ticks_at(points["x"], lambda peak: f"{peak:.3g}"))
    title = f"{record.study}: loss after {record.steps:,} steps, by peak rate"
    return Chart(_NAME, title, "", axis, tuple(panels.values()), points)
