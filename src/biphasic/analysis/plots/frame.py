"""What all charts are made of: a field with a quiet frame, ticks, texts that fit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from biphasic.analysis.palette import GRID, INK, MUTED
from biphasic.analysis.text import flat

SMALL = 7.5
"""Points; the smallest text of a figure."""
POINTS_PER_INCH = 72.0
# Pixel images place each letter on a whole pixel.
_ROUNDING = 1.07


def add_field(
    figure: Figure, left: float, bottom: float, width: float, height: float, *, pad: float = 3
) -> Axes:
    """Add a quiet chart: two thin edges, faint lines across, small numbers.

    Its field, between the axes, is placed in inches from the figure's lower left corner; `pad` is
    the room between numbers and their edge, in points.
    """
    across, up = figure.get_size_inches()
    axes = figure.add_axes((left / across, bottom / up, width / across, height / up))
    axes.set_facecolor("none")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GRID)
    axes.tick_params(colors=MUTED, labelsize=SMALL, length=0, pad=pad)
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    return axes


def head(
    axes: Axes, title: str, unit: str, *, flush: float, heights: tuple[float, float], size: float
) -> None:
    """Write title and unit above a chart, never rotated.

    Args:
        axes: The chart.
        title: In bold; may be empty.
        unit: Below the title, small.
        flush: Where both begin, in points from the chart's left edge.
        heights: Points of both above the chart.
        size: Points of the title.
    """
    for text, above, points, color, weight in (
        (unit, heights[1], SMALL, MUTED, "normal"),
        (title, heights[0], size, INK, "bold"),
    ):
        if text:
            axes.annotate(
                text, (0, 1), xytext=(flush, above), xycoords="axes fraction",
                textcoords="offset points", fontsize=points, color=color, fontweight=weight,
            )  # fmt: skip


def fix_ticks(axes: Axes, ticks: Sequence[tuple[float, str]]) -> None:
    """Set the ticks of the horizontal axis: places and their texts."""
    axes.xaxis.set_major_locator(FixedLocator([place for place, _ in ticks]))
    axes.xaxis.set_major_formatter(FixedFormatter([text for _, text in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())


@lru_cache(maxsize=4096)
def text_width(text: str, size: float, weight: str = "normal") -> float:
    """Return how wide a text is in the built-in font, in inches, pixels rounded up."""
    width, _, _ = text_to_path.get_text_width_height_descent(
        text, FontProperties(size=size, weight=weight), ismath=False
    )
    return _ROUNDING * float(width) / POINTS_PER_INCH


def fitting(
    text: str, size: float, width: float, weight: str = "normal", *, longest: int = 200
) -> str:
    """Return a text in one line, or as much of it as fits into `width` inches with an ellipsis."""
    text = flat(text)
    if len(text) <= longest and text_width(text, size, weight) <= width:
        return text
    text = text[:longest]
    while text and text_width(f"{text}…", size, weight) > width:
        text = text[:-1]
    return f"{text.rstrip()}…"
