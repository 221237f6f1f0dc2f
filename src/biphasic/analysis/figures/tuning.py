"""Figure and CSV of a tuning: loss by peak rate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from biphasic.analysis.figures.chart import Axis, Chart, Panel, Point, Series, ticks_at
from biphasic.analysis.figures.draw import FigureLayout, draw_chart, to_bytes
from biphasic.analysis.text import csv_text
from biphasic.analysis.tune_record import CurveRecord, TuneRecord
from biphasic.palette import SeriesStyle, distinct_styles

_NAME = "tune-curve"
_COLUMNS = ("name", "measure", "peak", "loss", "is_chosen", "lost", "state")
_LAYOUT = FigureLayout(num_columns=2, panel_width=3.6, panel_height=2.4)
_TALLEST_NATS = 1.0  # losses further above the lowest are drawn at this height


def curve_csv(record: TuneRecord) -> str:
    """Return the trials of a tuning as CSV; floats round-trip exactly."""
    rows = []
    for curve in record.curves:
        for trial in curve.trials:
            is_chosen = "yes" if trial.peak == curve.choice else ""
            numbers = trial.peak, trial.loss
            rows.append((curve.name, curve.measure, *numbers, is_chosen, trial.lost, trial.state))
    return csv_text(_COLUMNS, rows)


def draw_curves(record: TuneRecord) -> dict[str, bytes]:
    """Draw a tuning; return the content of each file by its suffix."""
    figure = draw_chart(_chart(record), _LAYOUT)
    return {ending: to_bytes(figure, ending, name=_NAME) for ending in ("png", "svg")}


def _chart(record: TuneRecord) -> Chart:
    styles = distinct_styles([curve.name for curve in record.curves])
    panels = []
    for measure in dict.fromkeys(curve.measure for curve in record.curves):
        curves = [curve for curve in record.curves if curve.measure == measure]
        losses = [t.loss for curve in curves for t in curve.trials if t.loss is not None]
        top = min(losses, default=0.0) + _TALLEST_NATS
        series = (line for c in curves for line in _series(c, styles[c.name], top))
        panels.append(Panel(measure, f"Held-out {measure}", curves[0].unit, tuple(series)))
    peaks = [trial.peak for curve in record.curves for trial in curve.trials]
    axis = Axis("peak rate", "log", ticks_at(peaks, lambda peak: f"{peak:.3g}"))
    title = f"{record.study}: loss after {record.steps:,} steps, by peak rate"
    return Chart(_NAME, title, "", axis, tuple(panels))


def _series(curve: CurveRecord, style: SeriesStyle, top: float) -> Iterator[Series]:
    """Yield a curve, the chosen trial, and at the upper edge those that diverged or are higher."""
    label = f"{curve.name}: {'none' if curve.choice is None else f'{curve.choice:.3g}'}"
    drawn = [(trial.peak, trial.loss) for trial in curve.trials]
    low = {peak: loss for peak, loss in drawn if loss is not None and loss <= top}
    high = [Point(peak, top) for peak, _ in drawn if peak not in low]
    chosen = [Point(peak, loss) for peak, loss in low.items() if peak == curve.choice]
    yield Series(label, style, tuple(Point(*each) for each in low.items()))
    for name, points, marker in (("chosen", chosen, "D"), ("diverged or higher", high, "x")):
        if points:
            look = replace(style, marker=marker, is_hollow=True)
            yield Series(name, look, tuple(points), is_connected=False)
