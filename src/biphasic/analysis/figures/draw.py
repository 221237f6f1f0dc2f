"""Drawing of charts: panels with a shared kind of axis, and a legend above them.

Matplotlib lays figures out (`layout="constrained"`), and measures legends; names break into lines.
"""

from __future__ import annotations

import html
import io
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backend_bases import get_registered_canvas_class
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from biphasic.analysis.figures.chart import Axis, Chart, Panel, Ticks
from biphasic.analysis.text import wrap
from biphasic.palette import FLOOR, GRID, INK, MUTED, PAPER, VARIABLES, SeriesStyle

_DPI = 200
_METADATA = {
    "png": ("Software",),
    "svg": ("Date", "Creator"),
    "pdf": ("CreationDate", "Creator", "Producer"),
}
# The page sets the font; a style element inside an inline SVG would apply to the whole page.
_NOT_FOR_PAGES = re.compile(
    r"<metadata>.*?</metadata>|<!--.*?-->|<defs>\s*<style[^>]*>.*?</style>\s*</defs>"
    r"| font-family: [^;\"]*;| transform=\"rotate\(-0 [^\"]*\"",
    re.DOTALL,
)
_OPENING = re.compile(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>')


@contextmanager
def drawing(*, salt: str, fonttype: str = "path") -> Iterator[None]:
    """Draw with fixed settings, ignoring any matplotlibrc, without warnings on missing glyphs."""
    # `salt` makes the ids in an SVG reproducible and unique to a figure. The font type `path` draws
    # the text of an SVG as outlines, without a font; `none` keeps text.
    with warnings.catch_warnings(), mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(
            {
                "svg.hashsalt": f"biphasic-{salt}",
                "svg.fonttype": fonttype,
                "pdf.fonttype": 42,  # TrueType, as publishers require
                "text.parse_math": False,  # names may contain dollar signs
            }
        )
        # The built-in font may lack the script of a label; it is drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        yield


def to_bytes(
    figure: Figure, ending: str, *, name: str = "", fonttype: str = "path", dpi: int = _DPI
) -> bytes:
    """Render a figure as PNG, SVG or PDF; `name` makes the ids of an SVG unique."""
    buffer = io.BytesIO()
    metadata = dict.fromkeys(_METADATA[ending])  # no dates and versions
    # `Figure.savefig` would draw twice: first to lay out, which `Figure.draw` does anyway.
    canvas: Any = get_registered_canvas_class(ending)(figure)
    with drawing(salt=name or ending, fonttype=fonttype):
        figure.set_dpi(dpi)  # of PNG; the others are 72 to an inch
        getattr(canvas, f"print_{ending}")(buffer, metadata=metadata)
    figure.set_layout_engine("none")  # all files of a figure have one layout
    return buffer.getvalue()


def to_svg(figure: Figure, *, name: str, fonttype: str = "path") -> str:
    """Render a figure as a stand-alone SVG."""
    return to_bytes(figure, "svg", name=name, fonttype=fonttype).decode()


def page_svg(figure: Figure, *, name: str, alt: str) -> str:
    """Render a figure as an SVG element for a page, with text as text and the page's colours."""
    # The palette's light colours become CSS variables. `name` is the prefix of its ids, unique on a
    # page.
    figure.set_facecolor("none")
    svg = to_svg(figure, name=name, fonttype="none")
    svg = _NOT_FOR_PAGES.sub("", svg[svg.index("<svg") :])
    svg = svg.replace('id="', f'id="{name}-').replace("xlink:href=", "href=")
    svg = svg.replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
    for variable, light, _ in VARIABLES:
        svg = svg.replace(light, f"var(--{variable})")
    svg = re.sub(r"\s*\n\s*", " ", svg)
    label = html.escape(alt, quote=True)
    return _OPENING.sub(
        lambda match: f'<svg viewBox="{match[1]}" role="img" aria-label="{label}">', svg, count=1
    )


SMALL, FONT_SIZE, _TITLE_SIZE = 7.5, 8.0, 10.0  # of texts, in points
_ROOM = 0.42  # beside, above and below the axes of a panel, in inches
_DODGE, _WIDEST_DODGE = 2.6, 10.0  # between series with intervals, in points
_LEAST_WIDTH = 3  # panels
_FLAT_ROOM = 1.0  # around a line of equal values, in its unit
_FEW_POINTS = 12
_RIMMED = 4.0
_DOTTED = (0, (1, 2))


@dataclass(frozen=True)
class Layout:
    """Sizes in inches, and the letters of a line of text."""

    columns: int = 4
    width: float = 1.76  # of a panel, including tick labels
    height: float = 1.5  # of the axes of a panel
    letters: int = 17  # of a line above a panel
    of_legend: int = 60  # of a line in the legend
    has_title: bool = True


PRINT = Layout()  # width of a page
PHONE = Layout(1, 3.7, 1.8, letters=42, of_legend=42, has_title=False)  # width of a phone
PAIRS = Layout(2, 3.9, 1.96, letters=44, has_title=False)  # for print


def chart_svg(chart: Chart) -> str:
    """Render a chart as SVG for a page, as wide as a phone."""
    return page_svg(draw(chart, PHONE), name=chart.name, alt=chart.alt)


def draw(chart: Chart, layout: Layout = PRINT) -> Figure:
    """Draw a chart; one of rows has a layout of its own."""
    if chart.axis.scale == "rows":
        return _draw_rows(chart)
    columns = max(1, min(layout.columns, len(chart.panels)))
    # A figure of one or two panels is wide enough for its title and legend.
    width = layout.width * max(columns, min(_LEAST_WIDTH, layout.columns))
    rows = math.ceil(len(chart.panels) / columns)
    with drawing(salt=chart.name):
        size = width, rows * (layout.height + 1.4 * _ROOM) + _ROOM
        figure, panels = panels_of(len(chart.panels), columns, size)
        figure.supxlabel(chart.axis.label, fontsize=SMALL, color=MUTED)
        _draw_legend(figure, chart, layout)
        for axes, panel in zip(panels, chart.panels, strict=True):
            head(axes, panel.title, panel.unit, letters=layout.letters)
            _draw_panel(axes, chart, panel, width=width / columns - _ROOM)
    return figure


def _draw_legend(figure: Figure, chart: Chart, layout: Layout) -> None:
    """Draw the legend in as many columns as fit, and make room for it above the panels."""
    keys = _keys(chart)
    title = wrap(chart.title, width=72) if layout.has_title else None
    names = [wrap(name, width=layout.of_legend, num_lines=4) for name in keys]
    look: dict[str, Any] = {
        "loc": "outside upper left", "frameon": False, "fontsize": FONT_SIZE, "labelcolor": INK,
        "handlelength": 2.4, "columnspacing": 1.8, "borderpad": 0.2, "labelspacing": 0.3,
        "title_fontproperties": {"size": _TITLE_SIZE, "weight": "bold"}, "alignment": "left",
    }  # fmt: skip
    columns = 1
    if len(keys) > 1:
        measured = figure.legend([*keys.values()], names, **look)
        each = measured.get_window_extent().width + 2 * FONT_SIZE * figure.dpi / 72
        columns = max(1, int(figure.bbox.width // each))
        measured.remove()
    legend = figure.legend([*keys.values()], names, ncols=columns, title=title, **look)
    box = legend.get_window_extent()
    figure.set_figheight(figure.get_figheight() + box.height / figure.dpi)


def _keys(chart: Chart) -> Mapping[str, Line2D]:
    """Return the legend: a line for each label, and for the level without training."""
    keys: dict[str, Line2D] = {}
    for panel in chart.panels:
        for label, (first, *_) in chart.lines(panel, in_parts=True):
            look = marker_look(first.style, size=5.0) if first.has_markers else {}
            line = first.style.line if first.is_connected else ""
            options = {**look, "color": first.style.color, "linestyle": line, "linewidth": 1.5}
            keys.setdefault(label, Line2D([], [], **options))
    for panel in chart.panels:
        if panel.floor is not None:
            line = Line2D([], [], color=FLOOR, linewidth=1.2, linestyle=_DOTTED)
            keys.setdefault(panel.floor_name, line)
    return keys


def panels_of(
    number: int, columns: int, size: tuple[float, float]
) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure with axes in rows: two thin edges, a faint grid and small tick labels."""
    figure = Figure(figsize=size, facecolor=PAPER, layout="constrained")
    grid = figure.subplots(math.ceil(number / columns), columns, squeeze=False)
    for axes in grid.flat[number:]:
        axes.remove()
    for axes in grid.flat[:number]:
        axes.set_facecolor("none")
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(GRID)
        axes.tick_params(colors=MUTED, labelsize=SMALL, length=0, pad=3)
        axes.grid(axis="y", color=GRID, linewidth=0.7)
        axes.set_axisbelow(True)
    return figure, [*grid.flat[:number]]


def head(axes: Axes, title: str, unit: str, *, letters: int) -> None:
    """Write title and unit above axes."""
    unit = wrap(unit, width=letters)
    axes.set_title(
        wrap(title, width=letters, num_lines=3), fontsize=FONT_SIZE, color=INK, fontweight="bold",
        loc="left", pad=15 + 10 * unit.count("\n"),
    )  # fmt: skip
    axes.annotate(
        unit, (0, 1), xytext=(0, 5), xycoords="axes fraction",
        textcoords="offset points", fontsize=SMALL, color=MUTED,
    )  # fmt: skip


def marker_look(style: SeriesStyle, *, size: float) -> dict[str, Any]:
    """Return matplotlib options for the markers of a style, without a line."""
    # Small markers are close together: a white rim would interrupt their line.
    is_line = style.marker == "x" or style.is_hollow or size < _RIMMED
    return {
        "marker": style.marker, "linestyle": "",
        "markersize": size if style.is_hollow else size + 0.4,
        "markerfacecolor": PAPER if style.is_hollow else style.color,
        "markeredgecolor": style.color if is_line else PAPER,
        "markeredgewidth": 1.1 if style.is_hollow else 0.6,
    }  # fmt: skip


def _draw_panel(axes: Axes, chart: Chart, panel: Panel, *, width: float) -> None:
    points, lines = chart.rows[panel.key], [rows for _, rows in chart.lines(panel, in_parts=True)]
    bars = [point for point in points if _has_bar(point)]
    _place_axis(axes, chart.axis, [p.x for p in points], has_bars=bool(bars), width=width)
    # Limits and ticks of the vertical axis, and the level without training.
    levels = [point.mean for point in points] + ([] if panel.floor is None else [panel.floor])
    low = min([*levels, *(point.low for point in bars)])
    high = max([*levels, *(point.high for point in bars)])
    high = high if panel.top is None else min(high, panel.top)
    room = 0.08 * (high - low) or _FLAT_ROOM
    axes.set_ylim(low - room, high + room)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10], min_n_ticks=3))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if panel.floor is not None:
        axes.axhline(panel.floor, color=FLOOR, linewidth=1.2, linestyle=_DOTTED)
    # Lines with intervals are shifted: the intervals would overlap.
    barred = [index for index, rows in enumerate(lines)
              if any(map(_has_bar, rows)) and not rows[0].is_reference]  # fmt: skip
    step = min(_DODGE, _WIDEST_DODGE / max(len(barred), 1))
    for index, rows in enumerate(lines):
        place = barred.index(index) - (len(barred) - 1) / 2 if index in barred else 0.0
        _draw_line(axes, rows, place * step)
    ends = [rows[-1] for _, rows in chart.lines(panel)]
    for place, end in enumerate(end for end in ends if end.mean > high + room):
        axes.annotate(
            f"↑ {end.mean:.1f}", (1, 1), xytext=(-2, -3 - 9 * place),
            xycoords="axes fraction", textcoords="offset points", fontsize=SMALL,
            color=end.style.color, ha="right", va="top",
        )  # fmt: skip


def _place_axis(axes: Axes, axis: Axis, places: Any, *, has_bars: bool, width: float) -> None:
    """Set limits, and the ticks whose texts are not too close; `width` is in inches."""
    ends = [*places, *(place for place, _ in axis.ticks)]
    low, high = min(ends), max(ends)
    if axis.scale == "log":
        axes.set_xscale("log")
        room = max((high / low) ** 0.1, 1.05)
        axes.set_xlim(low / room, high * room)
    else:
        room = (0.09 if has_bars else 0.04) * (high - low) or 1.0
        room = 0.4 if axis.scale == "category" else room
        axes.set_xlim(low - room, high + room)
    ticks = axis.ticks
    if axis.scale == "category":  # all are labelled
        letters = max(5, int(14 * width / len(ticks)))
        ticks = [(place, wrap(text, width=letters, num_lines=5)) for place, text in ticks]
    else:
        ticks = _apart(axes, ticks, 0.075 * (max(len(text) for _, text in ticks) + 1) / width)
    axes.xaxis.set_major_locator(FixedLocator([place for place, _ in ticks]))
    axes.xaxis.set_major_formatter(FixedFormatter([text for _, text in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())


def _apart(axes: Axes, ticks: Ticks, least: float) -> list[tuple[float, str]]:
    """Return ticks that are at least a share of the axis apart: both ends, then from the left."""
    to_axis = axes.transScale + axes.transLimits
    at = {tick: to_axis.transform((tick[0], 0))[0] for tick in ticks}
    chosen: list[tuple[float, str]] = []
    for tick in (*ticks[:1], *ticks[:0:-1][:1], *ticks[1:-1]):
        if all(abs(at[tick] - at[other]) >= least for other in chosen):
            chosen.append(tick)
    return sorted(chosen)


def _has_bar(point: Any) -> bool:
    return not math.isnan(point.low)


def _draw_line(axes: Axes, points: Sequence[Any], shift: float) -> None:
    """Draw a line, shifted to the right by `shift` typographic points."""
    first, color = points[0], points[0].style.color
    moved = axes.transData + ScaledTranslation(shift / 72, 0, axes.figure.dpi_scale_trans)
    if first.is_connected:
        by_x: dict[float, list[float]] = {}
        for point in points:
            by_x.setdefault(point.x, []).append(point.mean)
        axes.plot(
            [*by_x], [math.fsum(at) / len(at) for at in by_x.values()], color=color,
            transform=moved, linestyle=first.style.line,
            linewidth=1.4 if first.has_markers else 1.2, zorder=2 if first.is_reference else 3,
        )  # fmt: skip
    if not first.has_markers:
        return
    # One line with gaps is much faster to draw than one line per bar.
    bars = [point for point in points if _has_bar(point)]
    axes.plot(
        [x for point in bars for x in (point.x, point.x, math.nan)],
        [y for point in bars for y in (point.low, point.high, math.nan)],
        color=color, transform=moved, linewidth=1.1, marker="_", markersize=3.2,
        markeredgewidth=1.0, alpha=0.6 if first.is_reference else 1.0, zorder=3.5,
    )  # fmt: skip
    look = marker_look(first.style, size=4.4 if len(points) <= _FEW_POINTS else 3.0)
    places, means = [point.x for point in points], [point.mean for point in points]
    axes.plot(places, means, transform=moved, zorder=4, in_layout=False, **look)


_ROOM_OF_ROWS = 0.3  # minimum margin on either side, in percent points
_COLUMNS, _WIDTH, _HEAD = 2, 4.1, 0.75  # columns; of a panel, and above it, in inches
_ROW, _LINE = 0.36, 0.13  # height of a row with two lines of a name, and of each more
_LETTERS = 22  # of a line of a name


def _draw_rows(chart: Chart) -> Figure:
    """Draw panels with a row for each model: name, interval, seeds and mean, and its numbers."""
    names = {row.series: wrap(row.series, width=_LETTERS, num_lines=6)
             for row in chart.points.itertuples()}  # fmt: skip
    lines = max(name.count("\n") + 1 for name in names.values())
    columns = min(_COLUMNS, len(chart.panels))
    each = max(map(len, chart.rows.values())) * (_ROW + _LINE * max(lines - 2, 0))
    size = columns * _WIDTH, max(math.ceil(len(chart.panels) / columns) * (_HEAD + each), 1.0)
    with drawing(salt=chart.name):
        figure, panels = panels_of(len(chart.panels), columns, size)
        for axes, panel in zip(panels, chart.panels, strict=True):
            rows = chart.rows[panel.key]
            head(axes, panel.title, panel.unit, letters=24)
            axes.set_yticks(range(len(rows)), [names[row.series] for row in rows])
            axes.tick_params(axis="y", pad=8, labelsize=FONT_SIZE, labelcolor=INK)
            axes.spines["left"].set_visible(False)
            axes.grid(visible=False, axis="y")
            axes.grid(axis="x", color=GRID, linewidth=0.7)
            for y, row in enumerate(rows):
                _draw_row(axes, y, row)
            axes.set_ylim(len(rows) - 0.5, -0.5)
            axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
            low, high = axes.dataLim.intervalx
            if low <= high:
                room = max(0.06 * (high - low), _ROOM_OF_ROWS)
                axes.set_xlim(low - room, high + room)
            else:  # no score
                axes.set_xticks([])
    return figure


def _draw_row(axes: Axes, y: int, row: Any) -> None:
    """Draw interval, seeds and mean of a model, the line of a floor, and a reference."""
    axes.annotate(
        row.text, (1, y), xytext=(8, 0),
        xycoords=("axes fraction", "data"), textcoords="offset points", va="center",
        fontsize=FONT_SIZE, color=INK if row.is_best else MUTED,
        fontweight="bold" if row.is_best else "normal", annotation_clip=False,
    )  # fmt: skip
    if math.isnan(row.mean):
        return
    if row.level:
        axes.axvline(row.mean, color=FLOOR, linewidth=1.1, linestyle=row.level)
    for places, look in (
        ([row.low, row.high] if _has_bar(row) else [],
         {"linewidth": 2.4, "alpha": 0.55, "solid_capstyle": "round"}),
        (row.seeds, {"linestyle": "", "marker": "|", "markersize": 6, "alpha": 0.6}),
        ([row.mean], marker_look(row.style, size=6.0)),
    ):  # fmt: skip
        options = {**look, "color": row.style.color, "markeredgewidth": 0.9}
        axes.plot(places, [y] * len(places), **options)
    if not math.isnan(row.reference):
        axes.plot(row.reference, y, marker="|", markersize=14, color=INK)
