"""Drawing of charts: panels with a shared kind of axis, and a legend above them.

Matplotlib lays figures out; long names are shortened by their number of characters.
"""

from __future__ import annotations

import html
import io
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from biphasic.analysis.figures.chart import Axis, Chart, Panel, Series
from biphasic.analysis.text import flat, shortened, wrap
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
    options: dict[str, Any] = {"dpi": dpi} if ending == "png" else {}
    metadata = dict.fromkeys(_METADATA[ending])  # no dates and versions
    with drawing(salt=name or ending, fonttype=fonttype):
        figure.savefig(buffer, format=ending, metadata=metadata, **options)
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
_LETTERS, _DIGITS = 13, 15  # that fit into an inch
_LONGEST = 60  # letters of a name in a legend
_ABOVE, _BELOW, _ROW = 0.62, 0.42, 0.2  # of a panel, and of a row of the legend; in inches
_DODGE, _WIDEST_DODGE = 2.6, 10.0  # between series with intervals, in points
_LEAST_WIDTH = 3  # panels
_FLAT_ROOM = 1.0  # around a line of equal values, in its unit
_FEW_POINTS = 12
_RIMMED = 4.0


@dataclass(frozen=True)
class FigureLayout:
    """Sizes in inches."""

    num_columns: int = 4
    panel_width: float = 1.76  # width of a panel, including tick labels
    panel_height: float = 1.5  # height of the axes of a panel
    has_title: bool = True


PRINT = FigureLayout()  # width of a page
PHONE = FigureLayout(1, panel_width=3.7, panel_height=1.8, has_title=False)  # width of a phone
PAIRS = FigureLayout(2, panel_width=3.9, panel_height=1.96, has_title=False)  # for print


def chart_svg(chart: Chart) -> str:
    """Render a chart as SVG for a page, as wide as a phone."""
    return page_svg(draw_chart(chart, PHONE), name=chart.name, alt=chart.alt)


def draw_chart(chart: Chart, layout: FigureLayout = PRINT) -> Figure:
    """Draw a chart."""
    num_columns = max(1, min(layout.num_columns, len(chart.panels)))
    # A figure of one or two panels is wide enough for its title and legend.
    width = layout.panel_width * max(num_columns, min(_LEAST_WIDTH, layout.num_columns))
    keys = _keys(chart.panels)
    letters = min(_LONGEST, round(width * _LETTERS) - 6)
    shown = shortened(keys, lambda name: len(name) <= letters)
    names = [_cut(shown[name], letters) for name in keys]
    columns = max(1, int(width * _LETTERS) // (max(map(len, names), default=0) + 6))
    num_rows = math.ceil(len(chart.panels) / num_columns)
    above = _ROW * math.ceil(len(names) / columns) + (0.3 if layout.has_title else 0.0)
    height = above + num_rows * (_ABOVE + layout.panel_height) + _BELOW
    with drawing(salt=chart.name):
        figure, panels = panels_of(len(chart.panels), num_columns, (width, height))
        title = _cut(chart.title, round(width * _LETTERS * 0.85)) if layout.has_title else None
        figure.legend(
            [*keys.values()], names, loc="outside upper left", ncols=columns, frameon=False,
            fontsize=FONT_SIZE, labelcolor=INK, handlelength=2.4, columnspacing=1.6, borderpad=0.2,
            labelspacing=0.3, title=title, alignment="left",
            title_fontproperties={"size": _TITLE_SIZE, "weight": "bold"},
        )  # fmt: skip
        figure.supxlabel(chart.axis.label, fontsize=SMALL, color=MUTED)
        for axes, panel in zip(panels, chart.panels, strict=True):
            _draw_panel(axes, panel, chart.axis, width=width / num_columns - 0.45)
    return figure


def panels_of(
    number: int, num_columns: int, size: tuple[float, float]
) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure with axes in rows: two thin edges, a faint grid and small tick labels."""
    figure = Figure(figsize=size, facecolor=PAPER, layout="constrained")
    grid = figure.subplots(math.ceil(number / num_columns), num_columns, squeeze=False)
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


def head(axes: Axes, title: str, unit: str, *, width: float) -> None:
    """Write title and unit above axes of a width in inches."""
    letters = round(width * _LETTERS)
    title = flat(title) if len(title) <= letters else wrap(title, width=letters)
    axes.set_title(title, fontsize=FONT_SIZE, color=INK, fontweight="bold",
                   loc="left", pad=15)  # fmt: skip
    axes.annotate(
        _cut(unit, letters), (0, 1), xytext=(0, 5), xycoords="axes fraction",
        textcoords="offset points", fontsize=SMALL, color=MUTED,
    )  # fmt: skip


def fix_ticks(axes: Axes, ticks: Sequence[tuple[float, str]]) -> None:
    """Set the ticks of the horizontal axis: positions and texts."""
    axes.xaxis.set_major_locator(FixedLocator([place for place, _ in ticks]))
    axes.xaxis.set_major_formatter(FixedFormatter([text for _, text in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())


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


def _cut(text: str, letters: int) -> str:
    """Return a text on one line, cut with an ellipsis."""
    text = flat(text)
    return text if len(text) <= letters else f"{text[: letters - 1].rstrip()}…"


def _keys(panels: Iterable[Panel]) -> Mapping[str, Line2D]:
    """Return the legend: a line for each label, and for the level without training."""
    keys: dict[str, Line2D] = {}
    for panel in panels:
        for series in panel.series:
            style = series.style
            look = marker_look(style, size=5.0) if series.has_markers else {}
            line = style.line if series.is_connected else ""
            options = {**look, "color": style.color, "linestyle": line, "linewidth": 1.5}
            keys.setdefault(series.label, Line2D([], [], **options))
    for panel in panels:
        if panel.floor is not None:
            line = Line2D([], [], color=FLOOR, linewidth=1.2, linestyle=(0, (1, 2)))
            keys.setdefault(panel.floor_name, line)
    return keys


def _draw_panel(axes: Axes, panel: Panel, axis: Axis, *, width: float) -> None:
    head(axes, panel.title, panel.unit, width=width)
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
    high = axes.get_ylim()[1]
    beyond = {  # the last part of a model's line is kept
        (series.label, series.points[-1].model): series
        for series in panel.series
        if series.points and high < series.points[-1].mean
    }
    for place, series in enumerate(beyond.values()):
        axes.annotate(
            f"↑ {series.points[-1].mean:.1f}", (1, 1), xytext=(-2, -3 - 9 * place),
            xycoords="axes fraction", textcoords="offset points", fontsize=SMALL,
            color=series.style.color, ha="right", va="top",
        )  # fmt: skip


def _place_axis(axes: Axes, axis: Axis, panel: Panel, *, width: float) -> None:
    """Set limits, and the ticks whose texts are not too close."""
    places = [place for place, _ in axis.ticks] + [point.x for point in panel.points]
    low, high = min(places), max(places)
    if axis.scale == "log":
        axes.set_xscale("log")
        room = max((high / low) ** 0.1, 1.05)
        axes.set_xlim(low / room, high * room)
    else:
        has_bars = any(point.low is not None for point in panel.points)
        room = (0.09 if has_bars else 0.04) * (high - low) or 1.0
        room = 0.4 if axis.scale == "category" else room
        axes.set_xlim(low - room, high + room)
    letters = width * _DIGITS
    if axis.scale == "category":  # all are labelled
        each = max(4, int(width * _LETTERS / len(axis.ticks)) - 1)
        fix_ticks(axes, [(place, wrap(text, width=each)) for place, text in axis.ticks])
        return
    ends = axes.transScale.transform([(x, 0) for x in axes.get_xlim()])[:, 0]
    at = [
        (axes.transScale.transform((place, 0))[0] - ends[0]) / (ends[1] - ends[0]) * letters
        for place, _ in axis.ticks
    ]
    sizes = [len(text) for _, text in axis.ticks]
    order, chosen = [*range(len(at))], list[int]()
    for index in (*order[:1], *order[:0:-1][:1], *order[1:-1]):  # both ends, then from the left
        gaps = (abs(at[index] - at[i]) - (sizes[index] + sizes[i]) / 2 for i in chosen)
        if all(gap >= 1 for gap in gaps):
            chosen.append(index)
    fix_ticks(axes, [axis.ticks[index] for index in sorted(chosen)])


def _place_heights(axes: Axes, panel: Panel) -> None:
    """Set limits and ticks of the vertical axis, and draw the level without training."""
    points = panel.points
    levels = [] if panel.floor is None else [panel.floor]
    low = min([*levels, *(point.mean if point.low is None else point.low for point in points)])
    high = max([*levels, *(point.mean if point.high is None else point.high for point in points)])
    high = high if panel.top is None else min(high, panel.top)
    room = 0.08 * (high - low) or _FLAT_ROOM
    axes.set_ylim(low - room, high + room)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10], min_n_ticks=3))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if panel.floor is not None:
        axes.axhline(panel.floor, color=FLOOR, linewidth=1.2, linestyle=(0, (1, 2)))


def _draw_series(axes: Axes, series: Series, shift: float) -> None:
    """Draw a series, shifted to the right by `shift` typographic points."""
    points = sorted(series.points, key=lambda point: point.x)
    color, scale = series.style.color, axes.figure.dpi_scale_trans
    moved = axes.transData + ScaledTranslation(shift / 72, 0, scale)
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
    look = marker_look(series.style, size=4.4 if len(points) <= _FEW_POINTS else 3.0)
    places, means = [point.x for point in points], [point.mean for point in points]
    axes.plot(places, means, transform=moved, zorder=4, in_layout=False, **look)
