"""The data of a figure: panels with series of points, or the reason why it is skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from biphasic.amounts import amount
from biphasic.analysis.text import csv_text, flat
from biphasic.palette import FLOOR, SeriesStyle


@dataclass(frozen=True)
class Point:
    """One mean with its interval."""

    x: float
    mean: float  # position on the vertical axis; infinity is drawn at the upper edge
    low: float | None = None  # lower end of the interval; None without one
    high: float | None = None
    model: str = ""
    note: str = ""  # text above it
    is_chosen: bool = False  # whether to mark it with a ring


@dataclass(frozen=True)
class Series:
    """Points with the same label and style."""

    label: str  # name in the legend; equal labels share one entry
    style: SeriesStyle
    points: tuple[Point, ...]  # in any order
    # Whether a line connects the points, or the means of points with the same x.
    is_connected: bool = True
    has_markers: bool = True
    is_reference: bool = False  # whether it shows the paper's values, in the background


@dataclass(frozen=True)
class Panel:
    """One panel of a chart."""

    key: str  # matches panels of two charts
    title: str
    unit: str
    series: tuple[Series, ...]
    # Value of an encoder without training, drawn as a dotted line; None without.
    floor: float | None = None
    floor_name: str = "untrained"
    # Upper limit of the vertical axis; higher lines are cut off. None without a limit.
    top: float | None = None

    @property
    def points(self) -> list[Point]:
        """The points of all series."""
        return [point for series in self.series for point in series.points]


@dataclass(frozen=True)
class Axis:
    """The horizontal axis that all panels share; ticks are positions with texts."""

    label: str
    scale: Literal["linear", "log", "category"]
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class Chart:
    """A figure as data."""

    name: str  # file name without suffix
    title: str
    caption: str  # description and caveats
    axis: Axis
    panels: tuple[Panel, ...]

    @property
    def alt(self) -> str:
        """Alternative text: a description with the ends of every series."""
        parts = [f"{flat(self.title)}. Horizontal axis: {self.axis.label}."]
        for panel in self.panels:
            # The line of a model may consist of several series with gaps.
            lines = groupby(
                (s for s in panel.series if s.points), lambda s: (s.label, s.points[0].model)
            )
            ends = [
                self._described(label, [point for series in group for point in series.points])
                for (label, _), group in lines
            ]
            if panel.floor is not None:
                ends.append(f"{panel.floor_name} {panel.floor:z.2f}")
            heading = ", ".join(filter(None, (flat(panel.title), panel.unit)))
            parts.append(f"{heading}: {'; '.join(ends)}.")
        return " ".join(parts)

    def _described(self, label: str, points: list[Point]) -> str:
        points = sorted(points, key=lambda point: point.x)
        first, last = points[0], points[-1]
        if first.x == last.x:
            return f"{flat(label)} {first.mean:z.2f}"
        return (
            f"{flat(label)} from {first.mean:z.2f} at {self._place(first.x)} "
            f"to {last.mean:z.2f} at {self._place(last.x)}"
        )

    def _place(self, x: float) -> str:
        return dict(self.axis.ticks).get(x) or (amount(x) if x >= 1_000 else f"{x:g}")

    def split(self) -> list[Chart]:
        """Return one chart per panel, with the panel's title."""
        return [
            replace(
                self, name=f"{self.name}-{index}", title=one.title, panels=(replace(one, title=""),)
            )
            for index, one in enumerate(self.panels)
        ]


@dataclass(frozen=True)
class Skipped:
    """A figure that cannot be drawn, with the reason."""

    name: str
    title: str
    reason: str


def points_csv(chart: Chart) -> str:
    """Return the points of a chart as CSV; floats round-trip exactly."""
    columns = ("panel", "series", "x", "mean", "low", "high", "model")
    rows = []
    for panel in chart.panels:
        for series in panel.series:
            for point in sorted(series.points, key=lambda point: (point.x, point.model)):
                numbers = (point.x, point.mean, point.low, point.high)
                rows.append((panel.title, series.label, *numbers, point.model))
    return csv_text(columns, rows)


def numbered(caption: str, number: int) -> str:
    """Add the number of the paper's figure to a caption."""
    return f"{caption} As Figure {number} of arXiv:2507.00994."


def ticks_at(
    places: Iterable[float], text: Callable[[float], str]
) -> tuple[tuple[float, str], ...]:
    """Return a tick for each distinct position."""
    return tuple((place, text(place)) for place in sorted(set(places)))


def with_reference(chart: Chart, reference: Chart, *, name: str) -> Chart:
    """Add the series of a reference chart to the background of each panel, in grey."""
    # Categories are matched by their text; unmatched points are omitted. `name` is the prefix of
    # the labels of its series.
    mine = {text.casefold(): place for place, text in chart.axis.ticks}
    theirs = dict(reference.axis.ticks)
    is_category = chart.axis.scale == "category"

    def moved(series: Series) -> Series | None:
        points = series.points
        if is_category:
            places = [(mine.get(theirs[point.x].casefold()), point) for point in points]
            points = tuple(replace(p, x=x) for x, p in places if x is not None)
        if not points:
            return None
        label = f"{name}: {series.label}"
        style = replace(series.style, color=FLOOR, line=":", is_hollow=True)
        return replace(series, label=label, style=style, points=points, is_reference=True)

    behind = {panel.key: filter(None, map(moved, panel.series)) for panel in reference.panels}
    panels = tuple(
        replace(panel, series=(*behind.get(panel.key, ()), *panel.series)) for panel in chart.panels
    )
    if is_category:
        return replace(chart, panels=panels)
    ticks = tuple(sorted((dict(chart.axis.ticks) | theirs).items()))
    axis = replace(chart.axis, ticks=ticks)
    return replace(chart, panels=panels, axis=axis)
