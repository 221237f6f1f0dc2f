"""The curves of a tuning: loss against peak rate, as a figure and as rows."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from biphasic.analysis.palette import INK, MUTED, PAPER, SeriesStyle, distinct_styles
from biphasic.analysis.plots.frame import SMALL, add_field, fix_ticks
from biphasic.analysis.plots.render import drawing, to_png, to_svg
from biphasic.analysis.text import csv_text
from biphasic.analysis.tune_record import CurveRecord, TuneRecord

_NAME = "tune-curve"
_COLUMNS = ("name", "measure", "peak", "loss", "is_chosen", "lost", "state")
_PANEL_WIDTH = 3.6
_PANEL_HEIGHT = 2.4
_NARROWEST = 5.6
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.55, 0.15, 0.68, 0.5
_ENTRY = 0.17
_TEXT = 9.0
_TALLEST_NATS = 1.0
"""Losses further above the lowest are drawn at the upper edge: how bad they are says nothing."""


def curve_csv(record: TuneRecord) -> str:
    """Write a tuning as rows, one for each trunk; floats read back exactly."""
    rows = (
        (
            curve.name,
            curve.measure,
            repr(trial.peak),
            "" if trial.loss is None else repr(trial.loss),
            "yes" if trial.peak == curve.choice else "",
            trial.lost,
            trial.state,
        )
        for curve in record.curves
        for trial in curve.trials
    )
    return csv_text(_COLUMNS, rows)


def draw_curves(record: TuneRecord) -> dict[str, bytes]:
    """Draw a tuning; return the content of a file by its ending."""
    with drawing(salt=_NAME):
        figure = _draw(record)
    return {"png": to_png(figure), "svg": to_svg(figure, name=_NAME).encode()}


def _draw(record: TuneRecord) -> Figure:
    measures = list(dict.fromkeys(curve.measure for curve in record.curves))
    panels = [[c for c in record.curves if c.measure == measure] for measure in measures]
    styles = distinct_styles([curve.name for curve in record.curves])
    key = _ENTRY * max(len(curves) for curves in panels)
    width = max(len(panels) * _PANEL_WIDTH, _NARROWEST)
    height = _TOP + _PANEL_HEIGHT + _BOTTOM + key
    figure = Figure(figsize=(width, height), facecolor=PAPER)
    for index, (measure, curves) in enumerate(zip(measures, panels, strict=True)):
        left, field = index * _PANEL_WIDTH + _LEFT, _PANEL_WIDTH - _LEFT - _RIGHT
        axes = add_field(figure, left, key + _BOTTOM, field, _PANEL_HEIGHT)
        _dress(axes, curves)
        axes.set_title(f"Held-out {measure}", fontsize=_TEXT, color=INK, loc="left", pad=16)
        axes.set_xlabel("peak rate", fontsize=SMALL, color=MUTED)
        axes.set_ylabel("nats per token", fontsize=SMALL, color=MUTED)
        for curve in curves:
            _draw_curve(axes, curve, styles[curve.name], _top(curves))
        axes.legend(
            loc="upper left", bbox_to_anchor=(-0.02, -0.42 / _PANEL_HEIGHT), frameon=False,
            fontsize=SMALL, labelcolor=INK, borderpad=0, borderaxespad=0, handlelength=2.6,
        )  # fmt: skip
    title = f"{record.study}: loss after {record.steps:,} steps, by peak rate (ring: chosen)"
    figure.text(
        0.12 / width, 1 - 0.1 / height, title, fontsize=_TEXT, fontweight="bold", color=INK,
        va="top",
    )  # fmt: skip
    return figure


def _dress(axes: Axes, curves: Sequence[CurveRecord]) -> None:
    rates = sorted({trial.peak for curve in curves for trial in curve.trials})
    axes.set_xscale("log")
    axes.set_xlim(rates[0] / 1.3, rates[-1] * 1.3)
    shown = rates[:: max(1, -(-len(rates) // 7))]
    fix_ticks(axes, [(rate, f"{rate:.3g}") for rate in shown])
    losses = _losses(curves)
    if losses:
        low, high = min(losses), _top(curves)
        room = 0.06 * (high - low) or 0.1
        axes.set_ylim(low - room, high + room)
    else:
        axes.set_ylim(0, 1)
        axes.set_yticks([])


def _losses(curves: Sequence[CurveRecord]) -> list[float]:
    return [t.loss for curve in curves for t in curve.trials if t.loss is not None]


def _top(curves: Sequence[CurveRecord]) -> float:
    """Return the height of the upper edge, where lost and hopeless trunks are drawn."""
    losses = _losses(curves)
    return min(max(losses), min(losses) + _TALLEST_NATS) if losses else 1.0


def _draw_curve(axes: Axes, curve: CurveRecord, style: SeriesStyle, top: float) -> None:
    finished = [(trial.peak, trial.loss) for trial in curve.trials if trial.loss is not None]
    axes.plot(
        [rate for rate, _ in finished], [min(loss, top) for _, loss in finished],
        color=style.color, marker=style.marker, linestyle=style.line, linewidth=1.3, markersize=4.5,
        label=_label(curve),
    )  # fmt: skip
    for rate, loss in finished:
        if loss > top:
            _note(axes, rate, top, f"{loss:.3g}", style)
        if rate == curve.choice:
            axes.plot(
                [rate], [loss], marker="o", markersize=10, markerfacecolor="none",
                markeredgecolor=style.color, markeredgewidth=1.2, linestyle="none",
            )  # fmt: skip
    for trial in curve.trials:
        if trial.loss is None:
            edge = axes.get_ylim()[1]
            axes.plot(
                [trial.peak], [edge], marker="x", color=style.color, linestyle="none",
                clip_on=False,
            )  # fmt: skip
            _note(axes, trial.peak, edge, "lost", style)


def _note(axes: Axes, rate: float, top: float, text: str, style: SeriesStyle) -> None:
    axes.annotate(
        text, (rate, top), xytext=(0, 5), textcoords="offset points", fontsize=SMALL,
        color=style.color, ha="center", annotation_clip=False,
    )  # fmt: skip


def _label(curve: CurveRecord) -> str:
    return f"{curve.name}: {'none' if curve.choice is None else f'{curve.choice:.3g}'}"
