"""The key of a figure: a sample of every style with its name, in rows above the panels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from biphasic.analysis.palette import INK, PAPER, SeriesStyle
from biphasic.analysis.plots.chart import Series
from biphasic.analysis.plots.frame import fitting, text_width

FONT_SIZE = 8.0
ROW_HEIGHT = 0.19
_SAMPLE = 0.32
_SPACE = 0.07
_GAP = 0.2
_LONGEST = 60


@dataclass(frozen=True)
class KeyEntry:
    """One entry with its place: `left` in inches, `row` from the top."""

    series: Series
    text: str
    left: float
    row: int


def lay_out_key(series: Sequence[Series], *, width: float) -> list[KeyEntry]:
    """Place an entry for each label into rows of at most `width` inches.

    A label too long for a row is cut; equal labels are shown once.
    """
    first: dict[str, Series] = {}
    for each in series:
        first.setdefault(each.label, each)
    entries: list[KeyEntry] = []
    left, row = 0.0, 0
    for each in first.values():
        text = fitting(each.label, FONT_SIZE, width - _SAMPLE - _SPACE, longest=_LONGEST)
        size = _SAMPLE + _SPACE + text_width(text, FONT_SIZE)
        if entries and left + size > width:
            left, row = 0.0, row + 1
        entries.append(KeyEntry(each, text, left, row))
        left += size + _GAP
    return entries


def key_height(entries: Sequence[KeyEntry]) -> float:
    """Return the height of a key in inches."""
    return ROW_HEIGHT * (entries[-1].row + 1) if entries else 0.0


def draw_key(figure: Figure, entries: Sequence[KeyEntry], *, left: float, top: float) -> None:
    """Draw a key whose upper left corner lies at `left`, `top`, in inches."""
    width, height = figure.get_size_inches()
    for entry in entries:
        y = (top - (entry.row + 0.5) * ROW_HEIGHT) / height
        start = left + entry.left
        ends = [start / width, (start + _SAMPLE) / width]
        style = entry.series.style
        common = {"color": style.color, "transform": figure.transFigure}
        if entry.series.is_connected:
            figure.add_artist(
                Line2D(ends, [y, y], linestyle=style.line, linewidth=1.5, **common)  # type: ignore[arg-type]
            )
        if entry.series.has_markers:
            look = marker_look(style)
            figure.add_artist(
                Line2D([sum(ends) / 2], [y], linestyle="", **common, **look)  # type: ignore[arg-type]
            )
        figure.text(
            (start + _SAMPLE + _SPACE) / width, y, entry.text, fontsize=FONT_SIZE, color=INK,
            va="center_baseline",
        )  # fmt: skip


def marker_look(style: SeriesStyle, *, size: float = 5.0) -> dict[str, object]:
    """Return matplotlib's settings for a style's markers."""
    if style.is_hollow:
        return {
            "marker": style.marker, "markersize": size, "markerfacecolor": PAPER,
            "markeredgecolor": style.color, "markeredgewidth": 1.1,
        }  # fmt: skip
    return {
        "marker": style.marker, "markersize": size + 0.4, "markerfacecolor": style.color,
        "markeredgecolor": style.color if style.marker == "x" else PAPER, "markeredgewidth": 0.6,
    }  # fmt: skip
