"""Drawing of charts: panels with a shared kind of axis, and a legend above them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from matplotlib.transforms import ScaledTranslation

from biphasic.analysis.figures.chart import Axis, Chart, Panel, Series
from biphasic.analysis.figures.frame import (
    FONT_SIZE,
    POINTS_PER_INCH,
    SMALL,
    EndLabel,
    add_field,
    draw_key,
    ends_fit,
    fitting,
    fix_ticks,
    head,
    key_height,
    label_ends,
    lay_out_key,
    marker_look,
    text_width,
)
from biphasic.analysis.figures.render import drawing, page_svg
from biphasic.analysis.text import is_whole, wrap
from biphasic.palette import FLOOR, INK, MUTED, PAPER

# In inches.
_EDGE, _LEFT, _RIGHT, _END_NAMES, _END_VALUES = 0.08, 0.36, 0.1, 1.1, 0.72
_HEAD, _UNIT_ALONE, _TICKS, _AXIS_LABEL, _TITLE = 0.42, 0.26, 0.2, 0.12, 0.26
_TICK_GAP, _WIDEST_TICK, _TICK_HEIGHT = 0.04, 1.2, 0.3
# In typographic points.
_TITLE_SIZE, _DODGE, _WIDEST_DODGE = 10.0, 2.6, 10.0
_LEAST_WIDTH = 3  # panels
_FLAT_ROOM = 1.0  # around a line of equal values, in its unit
_FEW_POINTS = 12


@dataclass(frozen=True)
class FigureLayout:
    """Sizes in inches."""

    num_columns: int = 4
    panel_width: float = 1.76  # width of a panel, including tick labels
    panel_height: float = 1.5  # height of the axes of a panel
    has_title: bool = True
    # Whether to draw a legend; otherwise lines are named at their ends where the names fit there.
    has_key: bool = True


PRINT = FigureLayout()  # width of a page
# Width of a phone, one panel per row.
PHONE = FigureLayout(num_columns=1, panel_width=3.7, panel_height=1.7, has_title=False)
# Width of a phone, with labels at the ends of lines.
ALONE = FigureLayout(1, panel_width=3.6, panel_height=1.96, has_title=False, has_key=False)
# Like `ALONE`, for print with two panels per row.
PAIRS = replace(ALONE, num_columns=2, panel_width=3.9)


def chart_svg(chart: Chart, layout: FigureLayout = PHONE) -> str:
    """Render a chart as SVG for a page."""
    return page_svg(draw_chart(chart, layout), name=chart.name, alt=chart.alt)


def draw_chart(chart: Chart, layout: FigureLayout = PRINT) -> Figure:
    """Draw a chart."""
    with drawing(salt=chart.name):
        return _draw(chart, layout)


def _draw(chart: Chart, layout: FigureLayout) -> Figure:
    num_columns = max(1, min(layout.num_columns, len(chart.panels)))
    num_rows = math.ceil(len(chart.panels) / num_columns)
    # A figure of one or two panels is wide enough for its title and legend.
    num_wide = min(_LEAST_WIDTH, layout.num_columns) if layout.has_key else num_columns
    width = 2 * _EDGE + layout.panel_width * max(num_columns, num_wide)
    panel_width = (width - 2 * _EDGE) / num_columns
    is_named = not layout.has_key and _names_fit(chart.panels, height=layout.panel_height)
    keyed = [] if is_named else [series for panel in chart.panels for series in panel.series]
    entries = lay_out_key(keyed, width=width - 2 * _EDGE)
    title = _TITLE if layout.has_title else 0.0
    above = _HEAD if any(panel.title for panel in chart.panels) else _UNIT_ALONE
    row_height = above + layout.panel_height + _TICKS
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
        right = _RIGHT if layout.has_key else _END_NAMES if is_named else _END_VALUES
        field = panel_width - _LEFT - right
        bottom = first_row - row * row_height - above - layout.panel_height
        left = _EDGE + column * panel_width + _LEFT
        axes = add_field(figure, left, bottom, field, layout.panel_height)
        _draw_panel(axes, panel, chart.axis, width=field)
        if not layout.has_key:
            label_ends(axes, _ends(panel, is_named=is_named), height=layout.panel_height)
    figure.text(0.5, 0.06 / height, chart.axis.label, fontsize=SMALL, color=MUTED, ha="center")
    return figure


def _draw_panel(axes: Axes, panel: Panel, axis: Axis, *, width: float) -> None:
    room = _LEFT + width + _RIGHT - 0.04
    title = fitting(panel.title, FONT_SIZE, room, "bold")
    head(axes, title, fitting(panel.unit, SMALL, room), left=_LEFT)
    _place_axis(axes, axis, panel, width=width)
    _place_heights(axes, panel)
    # Series with intervals are shifted: the intervals would overlap.
    shifted = [
        series
        for series in panel.series
        if not series.is_reference and any(point.low is not None for point in series.points)
    ]
    for series in panel.series:
        shift = 0.0
        if series in shifted and len(shifted) > 1:
            step = min(_DODGE, _WIDEST_DODGE / len(shifted))
            shift = (shifted.index(series) - (len(shifted) - 1) / 2) * step
        _draw_series(axes, series, shift)


def _names_fit(panels: Sequence[Panel], *, height: float) -> bool:
    """Return whether lines can be named at their ends, without cut names or overlaps."""
    names = {series.label for panel in panels for series in panel.series}
    return all(map(is_whole, names)) and all(
        ends_fit(_ends(panel, is_named=True), width=_END_NAMES, height=height) for panel in panels
    )


def _ends(panel: Panel, *, is_named: bool) -> list[EndLabel]:
    """Return labels of lines: their names, and the last values that are above the upper limit."""
    _, high = _limits(panel)
    ends = {}
    for series in panel.series:  # the last part of a model's line is kept
        last = series.points[-1]
        parts = [wrap(series.label)] if is_named else []
        parts += [f"↑ {last.mean:.1f}"] if last.mean > high else []
        ends[series.label, last.model] = min(last.mean, high), " ".join(parts), series.style.color
    if panel.floor is not None:
        ends["", ""] = panel.floor, wrap(panel.floor_name), FLOOR
    return [end for end in ends.values() if end[1]]


def _place_axis(axes: Axes, axis: Axis, panel: Panel, *, width: float) -> None:
    """Set limits, and the ticks whose texts do not overlap."""
    places = [place for place, _ in axis.ticks]
    places += [point.x for point in panel.points]
    low, high = min(places), max(places)
    if axis.scale == "log":
        axes.set_xscale("log")
        room = max((high / low) ** 0.1, 1.05)
        axes.set_xlim(low / room, high * room)
    else:
        has_bars = any(point.low is not None for point in panel.points)
        room = (0.09 if has_bars else 0.04) * (high - low) or 1.0
        share = 0.4 if axis.scale == "category" else room
        axes.set_xlim(low - share, high + share)
    # All categories are labelled; labels of numbers may be omitted.
    is_category = axis.scale == "category"
    widest = width / len(axis.ticks) - _TICK_GAP if is_category else _WIDEST_TICK
    texts = [fitting(text, SMALL, widest) for _, text in axis.ticks]
    pixels = axes.transData.transform([(place, 0.5) for place, _ in axis.ticks])[:, 0]
    middles = [float(pixel) / axes.figure.dpi for pixel in pixels]
    shown = _apart(middles, [text_width(text, SMALL) for text in texts])
    if is_category:
        shown = [*range(len(texts))]
    fix_ticks(axes, [(axis.ticks[index][0], texts[index]) for index in shown])


def _apart(middles: Sequence[float], widths: Sequence[float]) -> list[int]:
    """Return the indices of texts that do not overlap: both ends, then greedily from the left."""
    order = [*range(len(middles))]
    chosen: list[int] = []
    for index in (*order[:1], *order[:0:-1][:1], *order[1:-1]):
        if all(
            abs(middles[index] - middles[other]) > (widths[index] + widths[other]) / 2 + _TICK_GAP
            for other in chosen
        ):
            chosen.append(index)
    return sorted(chosen)


def _place_heights(axes: Axes, panel: Panel) -> None:
    """Set limits and ticks of the vertical axis, and draw the level without training."""
    axes.set_ylim(*_limits(panel))
    if not any(math.isfinite(point.mean) for point in panel.points):
        axes.set_yticks([])
        return
    num_ticks = round(axes.bbox.height / axes.figure.dpi / _TICK_HEIGHT)
    axes.yaxis.set_major_locator(MaxNLocator(num_ticks, steps=[1, 2, 2.5, 5, 10], min_n_ticks=3))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if panel.floor is not None:
        axes.axhline(panel.floor, color=FLOOR, linewidth=1.2, linestyle=(0, (1, 2)))


def _limits(panel: Panel) -> tuple[float, float]:
    """Return the limits of the vertical axis."""
    points = [point for point in panel.points if math.isfinite(point.mean)]
    if not points:  # all are at the upper edge
        return 0.0, 1.0
    levels = [] if panel.floor is None else [panel.floor]
    low = min([*levels, *(point.mean if point.low is None else point.low for point in points)])
    high = max([*levels, *(point.mean if point.high is None else point.high for point in points)])
    high = high if panel.top is None else min(high, panel.top)
    room = 0.08 * (high - low) or _FLAT_ROOM
    # Notes of points at the upper edge are below them.
    return low - room, high + (room if points == panel.points else 3 * room)


def _draw_series(axes: Axes, series: Series, shift: float) -> None:
    """Draw a series, shifted to the right by `shift` typographic points."""
    points = sorted(series.points, key=lambda point: point.x)
    color, scale = series.style.color, axes.figure.dpi_scale_trans
    moved = axes.transData + ScaledTranslation(shift / POINTS_PER_INCH, 0, scale)
    if series.is_connected:
        by_x: dict[float, list[float]] = {}
        for point in points:
            by_x.setdefault(point.x, []).append(point.mean)
        means = [math.fsum(at_x) / len(at_x) for at_x in by_x.values()]
        axes.plot(
            [*by_x], means, color=color, transform=moved,
            linestyle=series.style.line, linewidth=1.4 if series.has_markers else 1.2,
            zorder=2 if series.is_reference else 3,
        )  # fmt: skip
    if not series.has_markers:
        return
    # One line with gaps is much faster to draw than one line per bar.
    bars = [(p.x, p.low, p.high) for p in points if p.low is not None and p.high is not None]
    axes.plot(
        [x for place, _, _ in bars for x in (place, place, math.nan)],
        [y for _, low, high in bars for y in (low, high, math.nan)],
        color=color, transform=moved, linewidth=1.1, marker="_", markersize=3.2,
        markeredgewidth=1.0, alpha=0.6 if series.is_reference else 1.0, zorder=3.5,
    )  # fmt: skip
    edge = axes.get_ylim()[1]
    for point in points:
        height = min(point.mean, edge)
        if point.is_chosen:
            axes.plot(
                [point.x], [height], marker="o", markersize=10, markerfacecolor="none",
                markeredgecolor=color, markeredgewidth=1.2,
            )  # fmt: skip
        if point.note:
            is_below = height == edge
            axes.annotate(
                point.note, (point.x, height), xytext=(0, -5 if is_below else 5),
                textcoords="offset points", fontsize=SMALL, color=color, ha="center",
                va="top" if is_below else "baseline",
            )  # fmt: skip
    look = marker_look(series.style, size=4.4 if len(points) <= _FEW_POINTS else 3.0)
    for group, is_clipped in (
        ([(p.x, p.mean) for p in points if math.isfinite(p.mean)], True),
        ([(p.x, edge) for p in points if not math.isfinite(p.mean)], False),
    ):
        places, heights = [x for x, _ in group], [y for _, y in group]
        axes.plot(places, heights, transform=moved, zorder=4, clip_on=is_clipped, **look)
