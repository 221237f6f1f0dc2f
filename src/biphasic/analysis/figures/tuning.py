"""Figure and CSV of a tuning: loss by peak rate."""

from __future__ import annotations

from dataclasses import replace

from pandas import DataFrame

from biphasic.analysis.figures.chart import Axis, Chart, Panel, points_of, ticks_at
from biphasic.analysis.figures.draw import Layout, draw, to_bytes
from biphasic.analysis.text import csv_text
from biphasic.analysis.tune_record import TuneRecord
from biphasic.palette import distinct_styles

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
