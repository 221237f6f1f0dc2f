"""Draws any chart: panels side by side on one kind of axis, the key above them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from matplotlib.transforms import ScaledTranslation, Transform

from biphasic.analysis.palette import INK, MUTED, PAPER
from biphasic.analysis.plots.chart import Axis, Chart, Panel, Point, Series
from biphasic.analysis.plots.frame import (
    POINTS_PER_INCH,
    SMALL,
    add_field,
    fitting,
    fix_ticks,
    head,
    text_width,
)
from biphasic.analysis.plots.key import (
    draw_key,
    key_height,
    lay_out_key,
    marker_look,
)
from biphasic.analysis.plots.render import drawing

_TITLE_SIZE = 10.0
_PANEL_SIZE = 8.0
_EDGE = 0.08
_LEFT = 0.36
_RIGHT = 0.1
_HEAD = 0.42
_TICKS = 0.2
_AXIS_LABEL = 0.12
_TICK_GAP = 0.04
_WIDEST_TICK = 1.2
_TITLE = 0.26
_LEAST_WIDTH = 3
_DODGE = 2.6
_WIDEST_DODGE = 10.0
_FLAT_ROOM = 1.0


@dataclass(frozen=True)
class Layout:
    """Sizes in inches.

    Attributes:
        num_columns: Panels side by side.
        panel_width: Of a panel with its numbers.
        panel_height: Of the field of a panel alone.
        has_title: Whether the figure's title stands above it.
    """

    num_columns: int = 4
    panel_width: float = 1.76
    panel_height: float = 1.5
    has_title: bool = True


PRINT = Layout()
"""As wide as a page."""
PHONE = Layout(num_columns=1, panel_width=3.7, panel_height=1.7, has_title=False)
"""As wide as a phone, a panel below the other."""


def draw_chart(chart: Chart, layout: Layout = PRINT) -> Figure:
    """Draw a chart."""
    with drawing(salt=chart.name):
        return _draw(chart, layout)


def _draw(chart: Chart, layout: Layout) -> Figure:
    num_columns = max(1, min(layout.num_columns, len(chart.panels)))
    num_rows = math.ceil(len(chart.panels) / num_columns)
    # A figure of one or two panels keeps room for its title and key.
    num_wide = max(num_columns, min(_LEAST_WIDTH, layout.num_columns))
    width = 2 * _EDGE + layout.panel_width * num_wide
    panel_width = (width - 2 * _EDGE) / num_columns
    series = [each for panel in chart.panels for each in panel.series]
    entries = lay_out_key(series, width=width - 2 * _EDGE)
    title = _TITLE if layout.has_title else 0.0
    row_height = _HEAD + layout.panel_height + _TICKS
    height = 2 * _EDGE + title + key_height(entries) + num_rows * row_height + _AXIS_LABEL
    figure = Figure(figsize=(width, height), facecolor=PAPER)
    top = height - _EDGE
    if layout.has_title:
        text = fitting(chart.title, _TITLE_SIZE, width - 2 * _EDGE, "bold")
        figure.text(
            _EDGE / width, (top - 0.04) / height, text,
            fontsize=_TITLE_SIZE, fontweight="bold", color=INK, va="top",
        )  # fmt: skip
    draw_key(figure, entries, left=_EDGE, top=top - title)
    first_row = top - title - key_height(entries)
    for index, panel in enumerate(chart.panels):
        row, column = divmod(index, num_columns)
        field = panel_width - _LEFT - _RIGHT
        bottom = first_row - row * row_height - _HEAD - layout.panel_height
        left = _EDGE + column * panel_width + _LEFT
        axes = add_field(figure, left, bottom, field, layout.panel_height)
        _draw_panel(figure, axes, panel, chart.axis, width=field)
    figure.text(0.5, 0.06 / height, chart.axis.label, fontsize=SMALL, color=MUTED, ha="center")
    return figure


def _draw_panel(figure: Figure, axes: Axes, panel: Panel, axis: Axis, *, width: float) -> None:
    room = _LEFT + width + _RIGHT - 0.04
    title = fitting(panel.title, _PANEL_SIZE, room, "bold")
    unit = fitting(panel.unit, SMALL, room)
    flush = -_LEFT * POINTS_PER_INCH + 1
    head(axes, title, unit, flush=flush, heights=(16.0, 6.0), size=_PANEL_SIZE)
    _place_axis(axes, axis, panel, width=width)
    points = [point for series in panel.series for point in series.points]
    axes.set_ylim(*_range(points))
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10], min_n_ticks=3))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    # Only intervals would hide each other.
    own = [
        series
        for series in panel.series
        if not series.is_reference and any(point.low is not None for point in series.points)
    ]
    for series in panel.series:
        shift = 0.0
        if series in own and len(own) > 1:
            step = min(_DODGE, _WIDEST_DODGE / len(own))
            shift = (own.index(series) - (len(own) - 1) / 2) * step
        _draw_series(axes, series, _shifted(figure, axes, shift))


def _place_axis(axes: Axes, axis: Axis, panel: Panel, *, width: float) -> None:
    """Set limits and those ticks whose texts do not touch."""
    places = [place for place, _ in axis.ticks]
    places += [point.x for series in panel.series for point in series.points]
    low, high = min(places), max(places)
    if axis.scale == "log":
        axes.set_xscale("log")
        room = max((high / low) ** 0.1, 1.05)
        axes.set_xlim(low / room, high * room)
    else:
        share = 0.4 if axis.scale == "category" else 0.09 * (high - low) or 1.0
        axes.set_xlim(low - share, high + share)
    ends = axes.get_xlim()
    # Categories are all named; numbers between others can be left out.
    widest = width / len(axis.ticks) - _TICK_GAP if axis.scale == "category" else _WIDEST_TICK
    texts = [fitting(text, SMALL, widest) for _, text in axis.ticks]
    along = [_along(place, ends, is_log=axis.scale == "log") * width for place, _ in axis.ticks]
    shown = _apart(along, [text_width(text, SMALL) for text in texts])
    if axis.scale == "category":
        shown = [*range(len(texts))]
    fix_ticks(axes, [(axis.ticks[index][0], texts[index]) for index in shown])


def _along(place: float, ends: tuple[float, float], *, is_log: bool) -> float:
    low, high = ends
    if is_log:
        return math.log(place / low) / math.log(high / low)
    return (place - low) / (high - low)


def _apart(middles: Sequence[float], widths: Sequence[float]) -> list[int]:
    """Choose texts that do not touch: the ends and every n-th, then what else fits."""
    last = len(middles) - 1
    for stride in range(1, last + 1):
        chosen = [*range(0, last + 1, stride)]
        if chosen[-1] == last and all(
            _is_apart(one, other, middles, widths) for one, other in pairwise(chosen)
        ):
            break
    else:
        chosen = [0] if middles else []
    for index in range(last + 1):
        if all(index != other and _is_apart(index, other, middles, widths) for other in chosen):
            chosen.append(index)
    return sorted(chosen)


def _is_apart(one: int, other: int, middles: Sequence[float], widths: Sequence[float]) -> bool:
    needed = (widths[one] + widths[other]) / 2 + _TICK_GAP
    return abs(middles[one] - middles[other]) > needed


def _draw_series(axes: Axes, series: Series, transform: Transform) -> None:
    points = sorted(series.points, key=lambda point: point.x)
    color = series.style.color
    if series.is_connected:
        line = _means(points)
        axes.plot(
            [x for x, _ in line], [mean for _, mean in line], color=color, transform=transform,
            linestyle=series.style.line, linewidth=1.4 if series.has_markers else 1.2,
            zorder=2 if series.is_reference else 3,
        )  # fmt: skip
    if not series.has_markers:
        return
    for point in points:
        if point.low is not None and point.high is not None:
            axes.plot(
                [point.x, point.x], [point.low, point.high], color=color, transform=transform,
                linewidth=1.1, marker="_", markersize=3.2, markeredgewidth=1.0,
                alpha=0.6 if series.is_reference else 1.0, zorder=3.5,
            )  # fmt: skip
    look: dict[str, Any] = marker_look(series.style, size=4.4)
    axes.plot(
        [point.x for point in points], [point.mean for point in points], linestyle="",
        transform=transform, zorder=4, **look,
    )  # fmt: skip


def _means(points: Iterable[Point]) -> list[tuple[float, float]]:
    """Return one height for each place, where several models share one their mean."""
    heights: dict[float, list[float]] = {}
    for point in points:
        heights.setdefault(point.x, []).append(point.mean)
    return [(x, math.fsum(found) / len(found)) for x, found in heights.items()]


def _shifted(figure: Figure, axes: Axes, points: float) -> Transform:
    return axes.transData + ScaledTranslation(points / POINTS_PER_INCH, 0, figure.dpi_scale_trans)


def _range(points: Sequence[Point]) -> tuple[float, float]:
    low = min(point.mean if point.low is None else point.low for point in points)
    high = max(point.mean if point.high is None else point.high for point in points)
    room = 0.08 * (high - low) or _FLAT_ROOM
    return low - room, high + room
