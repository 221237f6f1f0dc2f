"""A figure: its specification, and with data its points as a frame; or why it is skipped.

`chart_of` fills a specification with two frames. Models have a row each with their factors; values
have a row each with the `name` of their model, `mean`, `low` and `high`, and their `panel` with its
`heading` and `unit`. A point's row has its `panel`, the name of its `series` in the legend, the
`line` that it is part of, the `part` of a line with gaps, `x`, `mean`, ends of the interval (`low`,
`high`) and the name of its `model`; and how it is drawn: `style`, `is_connected`, `has_markers`,
`is_reference`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

import pandas as pd

from biphasic.amounts import amount
from biphasic.analysis.text import csv_text, flat
from biphasic.analysis.words import words
from biphasic.palette import FLOOR

_USUAL = {
    "part": 0, "low": None, "high": None, "model": "", "is_connected": True, "has_markers": True,
    "is_reference": False,
}  # fmt: skip
_IN_FILES = ("x", "mean", "low", "high", "model")
Frame = Any  # of pandas, whose own types say little of columns
Ticks = tuple[tuple[float, str], ...]  # positions with their texts
WIDE = 8  # axes with a larger ratio of values are logarithmic


@dataclass(frozen=True)
class Panel:
    """One panel of a chart, without its points."""

    key: str  # matches panels of two charts
    title: str
    unit: str
    # Value of an encoder without training, drawn as a dotted line; None without.
    floor: float | None = None
    floor_name: str = "untrained"
    # Upper limit of the vertical axis; higher lines are cut off. None without a limit.
    top: float | None = None


@dataclass(frozen=True)
class Axis:
    """The horizontal axis that all panels share."""

    label: str
    scale: str  # `linear`, `log`, `category`, or `rows`: from top to bottom, with their own names
    ticks: Ticks


@dataclass(frozen=True, eq=False)
class Chart:
    """A figure as data."""

    name: str  # file name without suffix
    title: str
    caption: str  # description and caveats
    axis: Axis
    panels: tuple[Panel, ...]
    points: Frame
    note: str = ""  # the part of the caption that is about its models

    @cached_property
    def rows(self) -> Mapping[str, list[Any]]:
        """Points of each panel."""
        rows = defaultdict[str, list[Any]](list)
        for row in self.points.itertuples(index=False):
            rows[row.panel].append(row)
        return rows

    def lines(self, panel: Panel, *, in_parts: bool = False) -> Iterator[tuple[str, list[Any]]]:
        """Yield series and points of each line in a panel, or of each of its parts."""
        groups = defaultdict[Any, list[Any]](list)
        for row in self.rows[panel.key]:
            groups[row.series, row.line, row.part if in_parts else 0].append(row)
        for (label, *_), rows in groups.items():
            yield label, sorted(rows, key=attrgetter("x"))

    @property
    def alt(self) -> str:
        """Alternative text: a description with the ends of every line, or all scores of rows."""
        if self.axis.scale == "rows":
            return " ".join(
                words().strips(flat(one.key), [(flat(row.series), row.text) for row in rows])
                for one in self.panels
                if (rows := self.rows[one.key])
            )
        places = dict(self.axis.ticks)

        def place(x: float) -> str:
            return places.get(x) or (amount(x) if x >= 1_000 else f"{x:g}")

        panels = []
        for panel in self.panels:
            ends = [
                (flat(label), [(each.mean, place(each.x)) for each in (rows[0], rows[-1])])
                for label, rows in self.lines(panel)
            ]
            panels.append((flat(panel.title), panel, ends))
        return words().chart(flat(self.title), self.axis.label, panels)

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


class LackingError(Exception):
    """A figure lacks models."""


@dataclass(frozen=True)
class Spec:
    """A figure, without data."""

    number: int | None  # the paper's; None if it has none
    name: str
    title: str
    where: Callable[[Frame], Frame]  # chooses models; raises what a figure lacks
    x: str  # column of positions
    line: Callable[[Frame, str], Frame]  # adds `series` and `style`, and sorts models by them
    label: str  # of the horizontal axis
    ticks: Callable[[Frame], Ticks]
    scale: str = "linear"  # as of `Axis`, or `wide`: by the range of positions
    note: Callable[[Frame], str] | None = lambda _: ". "  # after the title; None: no caption
    of: Callable[[Frame], str] = lambda _: ""  # follows the title above the figure
    is_connected: bool = True
    lacking: str = "none of its models has a score"  # reason without values


def chart_of(spec: Spec, models: Frame, values: Frame, *, intervals: str = "") -> Chart | Skipped:
    """Fill a specification; `intervals` is a sentence about the values' intervals."""
    try:
        models = spec.where(models)
    except LackingError as error:
        return Skipped(spec.name, spec.title, str(error))
    models = spec.line(models, spec.x)
    points = models.merge(values, on="name")
    if points.empty:
        return Skipped(spec.name, spec.title, spec.lacking)
    connected = [spec.is_connected and not style.is_hollow for style in points["style"]]
    points = points_of(points.assign(x=points[spec.x].astype(float), is_connected=connected))
    low, high = points["x"].min(), points["x"].max()
    is_log = spec.scale == "log" or (spec.scale == "wide" and 0 < WIDE * low < high)
    scale = spec.scale if spec.scale in {"category", "rows"} else "log" if is_log else "linear"
    note, caption = "" if spec.note is None else spec.note(models), ""
    if spec.note is not None:
        shares = spec.is_connected and points.duplicated(["panel", "series", "line", "x"]).any()
        caption = words().caption(spec.title, note, shares, intervals, spec.number)
    return Chart(
        spec.name,
        f"{spec.title}{spec.of(models)}",
        caption,
        Axis(spec.label, scale, spec.ticks(points)),
        tuple(_panels(values[values["panel"].isin(points["panel"])])),
        points,
        note,
    )


def _panels(values: Frame) -> Iterator[Panel]:
    columns = {"panel": "key", "heading": "title"}
    firsts = values.drop_duplicates("panel").rename(columns=columns)
    known = [field.name for field in fields(Panel) if field.name in firsts]
    for one in firsts[known].to_dict("records"):
        yield Panel(**{name: value for name, value in one.items() if pd.notna(value)})


def ticks_of(text: Callable[[float], str]) -> Callable[[Frame], Ticks]:
    """Return ticks at all positions of points."""
    return lambda points: ticks_at(points["x"], text)


def points_of(rows: Frame) -> Frame:
    """Return rows of points with all their columns; a line is its series where it has no name."""
    usual = {"line": rows["series"], **_USUAL}
    rows = rows.assign(**{name: one for name, one in usual.items() if name not in rows})
    return rows.astype({"low": float, "high": float})


def points_csv(chart: Chart) -> str:
    """Return the points of a chart as CSV; floats round-trip exactly."""
    rows = (
        (panel.title, label, *(None if pd.isna(getattr(row, name)) else getattr(row, name)
                               for name in _IN_FILES))
        for panel in chart.panels
        for label, points in chart.lines(panel, in_parts=True)
        for row in sorted(points, key=attrgetter("x", "model"))
    )  # fmt: skip
    return csv_text(("panel", "series", *_IN_FILES), rows)


def ticks_at(places: Iterable[float], text: Callable[[float], str]) -> Ticks:
    """Return a tick for each distinct position."""
    return tuple((float(place), text(place)) for place in sorted({*places}))


def with_reference(
    chart: Chart, reference: Chart, *, name: str, panels: Mapping[str, str]
) -> Chart:  # fmt: skip
    """Add the lines of a reference chart to the background of each panel, in grey."""
    # Categories are matched by their text; unmatched points are omitted. `name` is the prefix of
    # the labels of its lines; `panels` are the chart's by those of the reference.
    behind = reference.points
    looks = [replace(style, color=FLOOR, line=":", is_hollow=True) for style in behind["style"]]
    behind = behind.assign(
        panel=behind["panel"].map(panels), series=f"{name}: " + behind["series"],
        line=f"{name}: " + behind["line"], style=looks, is_reference=True,
    )  # fmt: skip
    mine, theirs = dict(chart.axis.ticks), dict(reference.axis.ticks)
    if chart.axis.scale == "category":
        places = {text.casefold(): place for place, text in mine.items()}
        moves = {x: places.get(text.casefold()) for x, text in theirs.items()}
        behind = behind.assign(x=behind["x"].map(moves)).dropna(subset="x")
        ticks = chart.axis.ticks
    else:
        ticks = tuple(sorted({**mine, **theirs}.items()))
    points = pd.concat([behind, chart.points], ignore_index=True)
    return replace(chart, points=points, axis=replace(chart.axis, ticks=ticks))
