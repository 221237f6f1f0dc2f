"""Elements of charts: axes, ticks, legends, labels, and text that fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from biphasic.analysis.figures.chart import Series
from biphasic.analysis.text import flat, shortened
from biphasic.palette import GRID, INK, MUTED, PAPER, SeriesStyle

SMALL = 7.5  # size of the smallest text, in points
FONT_SIZE = 8.0  # size of the names of panels and series, in points
POINTS_PER_INCH = 72.0
_SAMPLE, _SPACE, _GAP, _KEY_ROW = 0.32, 0.07, 0.2, 0.19
_LONGEST = 60
_END_GAP = 7.0  # between a line and its label, in typographic points
_RIMMED = 4.0
# Raster images place each letter on a whole pixel.
_ROUNDING = 1.07


def add_field(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    """Add axes with two thin edges, a faint grid and small tick labels."""
    # Positions and sizes are in inches from the figure's lower left corner.
    across, up = figure.get_size_inches()
    axes = figure.add_axes((left / across, bottom / up, width / across, height / up))
    axes.set_facecolor("none")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GRID)
    axes.tick_params(colors=MUTED, labelsize=SMALL, length=0, pad=3)
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    return axes


def head(axes: Axes, title: str, unit: str, *, left: float) -> None:
    """Write title and unit above axes; both begin `left` inches to the left of them."""
    flush = 1 - left * POINTS_PER_INCH
    for text, above, points, color, weight in (
        (unit, 6, SMALL, MUTED, "normal"), (title, 16, FONT_SIZE, INK, "bold"),
    ):  # fmt: skip
        if text:
            axes.annotate(
                text, (0, 1), xytext=(flush, above), xycoords="axes fraction",
                textcoords="offset points", fontsize=points, color=color, fontweight=weight,
            )  # fmt: skip


def fix_ticks(axes: Axes, ticks: Sequence[tuple[float, str]]) -> None:
    """Set the ticks of the horizontal axis: positions and texts."""
    axes.xaxis.set_major_locator(FixedLocator([place for place, _ in ticks]))
    axes.xaxis.set_major_formatter(FixedFormatter([text for _, text in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())


@lru_cache(maxsize=4096)
def text_width(text: str, size: float, weight: str = "normal") -> float:
    """Return the width of a text in the built-in font, in inches."""
    width, _, _ = text_to_path.get_text_width_height_descent(
        text, FontProperties(size=size, weight=weight), ismath=False
    )
    return _ROUNDING * float(width) / POINTS_PER_INCH


def fitting(
    text: str, size: float, width: float, weight: str = "normal", *, longest: int = 200
) -> str:
    """Return a text on one line, cut with an ellipsis to fit into `width` inches."""
    text = flat(text)
    if len(text) <= longest and text_width(text, size, weight) <= width:
        return text
    text = text[:longest]
    while text and text_width(f"{text}…", size, weight) > width:
        text = text[:-1]
    return f"{text.rstrip()}…"


# A legend entry: a series, its text, inches from the left, and the row from the top.
Entry = tuple[Series, str, float, int]


def lay_out_key(series: Iterable[Series], *, width: float) -> list[Entry]:
    """Place legend entries into rows of at most `width` inches."""
    # Labels that are too long are shortened; equal labels are shown once.
    first: dict[str, Series] = {}
    for one in series:
        first.setdefault(one.label, one)
    room = width - _SAMPLE - _SPACE

    def fits(label: str) -> bool:
        text = flat(label)
        return len(text) <= _LONGEST and text_width(text, FONT_SIZE) <= room

    shown = shortened(first, fits)
    entries: list[Entry] = []
    left, row = 0.0, 0
    for label, one in first.items():
        text = fitting(shown[label], FONT_SIZE, room, longest=_LONGEST)
        size = _SAMPLE + _SPACE + text_width(text, FONT_SIZE)
        if entries and left + size > width:
            left, row = 0.0, row + 1
        entries.append((one, text, left, row))
        left += size + _GAP
    return entries


def key_height(entries: Sequence[Entry]) -> float:
    """Return the height of a legend in inches."""
    return _KEY_ROW * (entries[-1][-1] + 1) if entries else 0.0


def draw_key(figure: Figure, entries: Sequence[Entry], *, left: float, top: float) -> None:
    """Draw a legend with its upper left corner at `left`, `top`, in inches."""
    inches = figure.dpi_scale_trans
    for series, text, offset, row in entries:
        y, start = top - (row + 0.5) * _KEY_ROW, left + offset
        ends, style = (start, start + _SAMPLE), series.style
        if series.is_connected:
            look = {"color": style.color, "linestyle": style.line, "linewidth": 1.5}
            figure.add_artist(Line2D(ends, (y, y), transform=inches, **look))
        if series.has_markers:
            look = marker_look(style, size=5.0)
            figure.add_artist(Line2D([sum(ends) / 2], [y], transform=inches, **look))
        figure.text(
            start + _SAMPLE + _SPACE, y, text, transform=inches, fontsize=FONT_SIZE, color=INK,
            va="center_baseline",
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


# A label at the end of a line: the line's last value, the text, and its colour.
EndLabel = tuple[float, str, str]


def ends_fit(ends: Sequence[EndLabel], *, width: float, height: float) -> bool:
    """Return whether labels fit to the right of axes of `height` inches, below one another."""
    room = width - _END_GAP / POINTS_PER_INCH
    lines = [line for _, text, _ in ends for line in text.split("\n")]
    return all(text_width(line, FONT_SIZE) <= room for line in lines) and (
        sum(_label_height(text) for _, text, _ in ends) <= height * POINTS_PER_INCH
    )


def label_ends(axes: Axes, ends: Iterable[EndLabel], *, height: float) -> None:
    """Label each line at its end, in its colour, without overlaps."""
    # `height` is the height of the axes in inches.
    low, high = axes.get_ylim()
    points = height * POINTS_PER_INCH
    ends = sorted(ends)
    ideal = [(value - low) * points / (high - low) for value, _, _ in ends]
    sizes = [_label_height(text) for _, text, _ in ends]
    for (_, text, color), place in zip(ends, spread(ideal, sizes, height=points), strict=True):
        axes.annotate(
            text, (1, 0), xycoords="axes fraction", xytext=(_END_GAP, place),
            textcoords="offset points", va="center", fontsize=FONT_SIZE, color=color,
            linespacing=1.05, annotation_clip=False,
        )  # fmt: skip


def _label_height(text: str) -> float:
    return (1 + text.count("\n")) * FONT_SIZE * 1.22


def spread(ideal: Sequence[float], sizes: Sequence[float], *, height: float) -> list[float]:
    """Return positions of labels between 0 and `height`: overlapping ones form centred groups."""
    # Ideal centres are in ascending order.
    groups: list[tuple[float, float, list[int]]] = []  # middle, size, labels
    for index, (place, size) in enumerate(zip(ideal, sizes, strict=True)):
        middle, total, members = _inside(place, size, height), size, [index]
        while groups and groups[-1][0] + groups[-1][1] / 2 > middle - total / 2:
            below, below_total, below_members = groups.pop()
            members = below_members + members
            weight = len(members)
            middle = (below * len(below_members) + middle * (weight - len(below_members))) / weight
            total += below_total
            middle = _inside(middle, total, height)
        groups.append((middle, total, members))
    places = [0.0] * len(ideal)
    for middle, total, members in groups:
        edge = middle - total / 2
        for member in members:
            places[member] = edge + sizes[member] / 2
            edge += sizes[member]
    return places


def _inside(middle: float, size: float, height: float) -> float:
    """Move a label or group up or down so that it lies between 0 and `height`."""
    return max(min(middle, height - size / 2), size / 2)
