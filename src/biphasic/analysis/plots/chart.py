"""What a figure shows, before anything is drawn: panels of points, and why others are missing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from biphasic.analysis.palette import SeriesStyle, reference_style
from biphasic.analysis.score_table import DatasetInfo, ModelInfo, Scores
from biphasic.analysis.text import TASKS, csv_text, flat, metric_name


@dataclass(frozen=True)
class Point:
    """One mean with its interval.

    Attributes:
        x: Place on the axis.
        mean: Height.
        low: Lower end of the interval; None without one.
        high: Upper end.
        model: Name of the model that it belongs to.
    """

    x: float
    mean: float
    low: float | None = None
    high: float | None = None
    model: str = ""


@dataclass(frozen=True)
class Series:
    """Points that belong together.

    Attributes:
        label: Its name in the key; equal labels share one entry.
        style: How it looks.
        points: In any order.
        is_connected: Whether a line goes through its points, or their means where several share
            a place.
        has_markers: Whether single points show.
        is_reference: Whether these are the paper's numbers, drawn behind one's own.
    """

    label: str
    style: SeriesStyle
    points: tuple[Point, ...]
    is_connected: bool = True
    has_markers: bool = True
    is_reference: bool = False


@dataclass(frozen=True)
class Panel:
    """One small chart; `key` tells which panels of two charts belong together."""

    key: str
    title: str
    unit: str
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Axis:
    """The horizontal axis that all panels share; ticks are places with their text."""

    label: str
    scale: Literal["linear", "log", "category"]
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class Chart:
    """A figure as data.

    Attributes:
        name: File name without its ending.
        title: For people.
        caption: What is drawn, and what to know before believing it.
        axis: Shared by all panels.
        panels: In reading order.
    """

    name: str
    title: str
    caption: str
    axis: Axis
    panels: tuple[Panel, ...]

    @property
    def alt(self) -> str:
        """Say in words what the figure shows, ends of every series included."""
        parts = [f"{self.title}. Horizontal axis: {self.axis.label}."]
        for panel in self.panels:
            ends = "; ".join(
                text for series in panel.series if (text := self._spoken(series)) is not None
            )
            parts.append(f"{flat(panel.title)}, {panel.unit}: {ends}.")
        return " ".join(parts)

    def _spoken(self, series: Series) -> str | None:
        points = sorted(series.points, key=lambda point: point.x)
        if not points:
            return None
        first, last = points[0], points[-1]
        label = flat(series.label)
        if first.x == last.x:
            return f"{label} {first.mean:.2f}"
        return (
            f"{label} from {first.mean:.2f} at {self._place(first.x)} "
            f"to {last.mean:.2f} at {self._place(last.x)}"
        )

    def _place(self, x: float) -> str:
        return dict(self.axis.ticks).get(x, f"{x:g}")


@dataclass(frozen=True)
class Skipped:
    """A figure that cannot be drawn, and what the data lack for it."""

    name: str
    title: str
    reason: str


def points_csv(chart: Chart) -> str:
    """Write what a figure shows as rows; floats read back exactly."""
    columns = ("panel", "series", "x", "mean", "low", "high", "model")
    rows = []
    for panel in chart.panels:
        for series in panel.series:
            for point in sorted(series.points, key=lambda point: (point.x, point.model)):
                numbers = (point.x, point.mean, point.low, point.high)
                cells = ("" if number is None else repr(number) for number in numbers)
                rows.append((panel.title, series.label, *cells, point.model))
    return csv_text(columns, rows)


def shown_datasets(scores: Scores, *, is_every: bool = False) -> tuple[DatasetInfo, ...]:
    """Return the datasets that get a panel.

    Args:
        scores: A table.
        is_every: Show each dataset; by default a category's average stands for its datasets. An
            average over different metrics stands for nothing, its datasets are shown instead.
    """
    averaged = {
        dataset.task for dataset in scores.averages if dataset.metric != "mixed" and not is_every
    }
    return tuple(
        dataset
        for dataset in scores.datasets
        if (dataset.is_average and dataset.task in averaged)
        or (not dataset.is_average and dataset.task not in averaged)
    )


def panel_title(dataset: DatasetInfo) -> str:
    """Name a panel: the category for its average, else the dataset."""
    if dataset.is_average:
        return TASKS.get(dataset.task, "").capitalize() or dataset.name
    return dataset.name


def point(scores: Scores, model: ModelInfo, dataset: DatasetInfo, x: float) -> Point | None:
    """Return one score as a point; None where it is unknown."""
    score = scores.get(model.name, dataset.name)
    if score is None or score.estimate is None:
        return None
    found = score.estimate
    if found.half_width is None:
        return Point(x, found.mean, model=model.name)
    return Point(x, found.mean, found.low, found.high, model.name)


Lines = Sequence[tuple[str, SeriesStyle, Sequence[tuple[float, ModelInfo]]]]
"""For each series its label, its style, and its models with their places."""


def score_panels(
    scores: Scores,
    lines: Lines,
    datasets: Iterable[DatasetInfo],
    *,
    options: Mapping[str, Any] | None = None,
) -> tuple[Panel, ...]:
    """Return a panel per dataset that has at least one of the scores.

    Args:
        scores: Where scores stand.
        lines: What to draw.
        datasets: What to draw it for.
        options: Further fields of every series.
    """
    panels = []
    for dataset in datasets:
        series = tuple(
            Series(label, style, found, **(options or {}))
            for label, style, models in lines
            if (found := tuple(_points(scores, models, dataset)))
        )
        if series:
            unit = f"{metric_name(dataset.metric)}, %"
            panels.append(Panel(dataset.name, panel_title(dataset), unit, series))
    return tuple(panels)


def _points(
    scores: Scores, models: Iterable[tuple[float, ModelInfo]], dataset: DatasetInfo
) -> Iterable[Point]:
    for x, model in models:
        found = point(scores, model, dataset, x)
        if found is not None:
            yield found


def ticks_at(
    places: Iterable[float], text: Callable[[float], str]
) -> tuple[tuple[float, str], ...]:
    """Return a tick for each distinct place."""
    return tuple((place, text(place)) for place in sorted(set(places)))


def with_reference(chart: Chart, reference: Chart, *, name: str) -> Chart:
    """Put another table's series behind a chart's own, in grey, panel by panel.

    Categories are matched by their text; what one's own chart has no category for is left out.

    Args:
        chart: One's own.
        reference: The same figure of the other table.
        name: Begins the labels of its series.
    """
    move = _category_moves(chart.axis, reference.axis)
    behind = {
        panel.key: tuple(
            dataclasses.replace(
                series,
                label=f"{name}: {series.label}",
                style=reference_style(series.style),
                points=points,
                is_reference=True,
            )
            for series in panel.series
            if (points := _moved(series.points, move))
        )
        for panel in reference.panels
    }
    panels = tuple(
        dataclasses.replace(panel, series=behind.get(panel.key, ()) + panel.series)
        for panel in chart.panels
    )
    ticks = dict(chart.axis.ticks)
    if move is None:
        ticks |= dict(reference.axis.ticks)
    axis = dataclasses.replace(chart.axis, ticks=tuple(sorted(ticks.items())))
    return dataclasses.replace(chart, panels=panels, axis=axis)


def _category_moves(own: Axis, other: Axis) -> dict[float, float] | None:
    """Return where the places of another axis lie on one's own; None where numbers are numbers."""
    if own.scale != "category":
        return None
    mine = {text.casefold(): place for place, text in own.ticks}
    return {place: mine[text.casefold()] for place, text in other.ticks if text.casefold() in mine}


def _moved(points: tuple[Point, ...], move: dict[float, float] | None) -> tuple[Point, ...]:
    if move is None:
        return points
    return tuple(dataclasses.replace(each, x=move[each.x]) for each in points if each.x in move)
