"""The data of a figure: panels with series of points, or the reason why it is skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, Literal

from biphasic.amounts import amount, percent
from biphasic.analysis.estimate import METHODS, expected_coverage
from biphasic.analysis.records import ArmData
from biphasic.analysis.scores.table import DatasetInfo, ModelInfo, Scores, grouped
from biphasic.analysis.text import csv_text, flat
from biphasic.analysis.words import words
from biphasic.palette import (
    FLOOR,
    LINES,
    MARKERS,
    SERIES,
    SeriesStyle,
    distinct_styles,
    objective_styles,
)


@dataclass(frozen=True)
class Point:
    """One mean with its interval."""

    x: float
    mean: float  # position on the vertical axis
    low: float | None = None  # lower end of the interval; None without one
    high: float | None = None
    model: str = ""


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
    note: str = ""  # the part of the caption that is about its models

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


# Datasets with a panel; None for each category's average, or its only dataset.
Datasets = Sequence[DatasetInfo] | None
Placed = list[tuple[float, ModelInfo]]  # models and their positions
Line = tuple[str, SeriesStyle, Placed]  # label, style and models of a series
Recipe = tuple[str, int]  # objective, and the share of CLM steps in percent
_REFERENCE_RATE = 0.4  # the masking rate of most of the reference study's comparisons


@dataclass(frozen=True)
class Drawing:
    """What a figure of scores draws."""

    lines: Sequence[Line]
    axis: Axis
    note: str  # what follows the title in its caption
    of: str = ""  # what follows the title above it
    is_connected: bool = True


@dataclass(frozen=True)
class ScoreFigure:
    """A figure of scores: a function that selects models, or says what it lacks."""

    number: int | None  # the paper's; None if it has none
    name: str
    title: str
    plan: Callable[..., Drawing | str]

    def __call__(
        self, scores: Scores, datasets: Datasets = None, **options: Any
    ) -> Chart | Skipped:
        """Return the figure with a panel for each dataset; `options` are those of its function."""
        drawing = self.plan(scores, **options)
        if isinstance(drawing, str):
            return Skipped(self.name, self.title, drawing)
        panels = []
        for dataset in datasets or shown_datasets(scores):
            series = []
            for label, style, models in drawing.lines:
                if points := points_of(scores, [(x, model, dataset) for x, model in models]):
                    is_connected = drawing.is_connected and not style.is_hollow
                    series.append(Series(label, style, points, is_connected))
            if series:
                unit, title = f"{dataset.metric_facts.title}, %", dataset.name
                if dataset.is_average and dataset.facts.title != dataset.task:
                    title = dataset.facts.title.capitalize()
                panels.append(Panel(dataset.name, title, unit, tuple(series)))
        if not panels:
            return Skipped(self.name, self.title, "none of its models has a score")
        caption = f"{self.title}{drawing.note}"
        shares = (len({x for x, _ in models}) < len(models) for _, _, models in drawing.lines)
        if drawing.is_connected and any(shares):
            caption += "Lines connect means where several models share a position. "
        caption += interval_note(scores)
        if self.number is not None:
            caption = numbered(caption, self.number)
        title = f"{self.title}{drawing.of}"
        return Chart(self.name, title, caption, drawing.axis, tuple(panels), drawing.note)


def score_figure(
    number: int | None, name: str, title: str
) -> Callable[[Callable[..., Drawing | str]], ScoreFigure]:
    """Make a figure of a function; `number` is the paper's, None if it has none."""
    return partial(ScoreFigure, number, name, title)


def placed(models: Iterable[ModelInfo], x: Callable[[ModelInfo], float]) -> Placed:
    """Return models with their positions."""
    return [(x(model), model) for model in models]


def places_of(lines: Iterable[Line]) -> list[float]:
    """Return the positions of all models."""
    return [x for _, _, models in lines for x, _ in models]


def category_axis(label: str, texts: Iterable[str]) -> Axis:
    """Return an axis of categories at 0, 1, 2, ..."""
    return Axis(label, "category", tuple((float(place), text) for place, text in enumerate(texts)))


def finished(scores: Scores) -> tuple[ModelInfo, ...]:
    """Return distinct trained models at the end of their first training."""
    return tuple(
        model
        for model in scores.distinct
        if model.is_final and not model.continued_steps and model.objective != "none"
    )


def sizes(models: Iterable[ModelInfo]) -> list[str]:
    """Return sizes in ascending order; sizes without parameter counts come last."""
    parameters: dict[str, float] = {}
    for model in models:
        parameters.setdefault(model.size, model.parameters or float("inf"))
    return sorted(parameters, key=lambda size: parameters[size])


def arm_styles(arms: Sequence[ArmData]) -> dict[str, SeriesStyle]:
    """Return a style for each arm, in the study's order; the untrained encoder is grey."""
    styles = distinct_styles([arm.name for arm in arms if not arm.is_untrained])
    styles = {
        name: replace(style, line=LINES[index // len(SERIES) % len(LINES)])
        for index, (name, style) in enumerate(styles.items())
    }
    return {arm.name: styles.get(arm.name, SeriesStyle(FLOOR, "o", ":")) for arm in arms}


def clm_share(model: ModelInfo) -> float:
    """Return the share of CLM steps of a model, in percent."""
    return 100 * model.clm_steps / model.total_steps if model.total_steps else 0.0


def reference_rate(models: Iterable[ModelInfo]) -> float | None:
    """Return the masking rate for comparisons of objectives."""
    # The reference study's 40 % if a model has it, else the most common rate (ties go to the higher
    # one); None if no model masks.
    rates = Counter(model.mask_rate for model in models if model.mask_rate is not None)
    if _REFERENCE_RATE in rates or not rates:
        return _REFERENCE_RATE if rates else None
    return max(rates, key=lambda rate: (rates[rate], rate))


def at_rate(models: Iterable[ModelInfo], rate: float | None) -> list[ModelInfo]:
    """Return the models with a masking rate, and those that do not mask."""
    return [model for model in models if model.mask_rate in (None, rate)]


def steps_text(steps: float) -> str:
    """Format steps for ticks: `42K`."""
    return amount(steps).replace(" ", "")


def masking_note(rate: float | None) -> str:
    """Return a sentence about the masking rate of compared models; empty if none masks."""
    return "" if rate is None else f"MLM at a masking rate of {percent(rate)}. "


def recipe(model: ModelInfo) -> Recipe:
    """Return the objective of a model and its share of CLM steps."""
    return model.objective, round(clm_share(model))


def recipe_looks(recipes: Iterable[Recipe]) -> dict[Recipe, tuple[str, SeriesStyle]]:
    """Return label and style of each recipe; labels of mixtures include their share of CLM."""
    recipes = [*recipes]
    styles = objective_styles(objective for objective, _ in recipes)
    # An objective may end with how the models attend: `CLM+MLM, causal`.
    mixed = [key for key in recipes if key[0].partition(",")[0] == "CLM+MLM"]
    # The first mixture has the style of its objective; further ones come after all objectives.
    further = distinct_styles([*(name for name in styles if name != "none"), *mixed[1:]])
    return {
        key: (f"{key[0]}, {key[1]} % CLM", further.get(key, styles[key[0]]))
        if key in mixed
        else (key[0], styles[key[0]])
        for key in recipes
    }


def recipe_lines(models: Sequence[ModelInfo], place: Callable[[ModelInfo], float]) -> list[Line]:
    """Return a series per recipe and optimizer, and per size if a size has several budgets."""
    by_size = grouped(models, lambda model: (*recipe(model), model.size, model.optimizer))
    order = sizes(models)
    has_sizes = len(order) > 1 and any(len({*map(place, g)}) > 1 for g in by_size.values())
    has_optimizers = len({model.optimizer for model in models}) > 1

    def way(model: ModelInfo) -> tuple[str, ...]:
        optimizer = (model.optimizer,) if has_optimizers else ()
        return (model.size, *optimizer) if has_sizes else optimizer

    ways = grouped(sorted(models, key=lambda model: order.index(model.size)), way)
    recipes = grouped(models, recipe)
    looks = recipe_looks(recipes)
    lines = []
    for key, of_recipe in recipes.items():
        label, style = looks[key]
        for index, parts in enumerate(ways):
            look = replace(style, line=LINES[index % len(LINES)]) if has_sizes else style
            look = replace(look, marker=MARKERS[index % len(MARKERS)]) if has_optimizers else look
            members = [model for model in of_recipe if way(model) == parts]
            lines.append((", ".join((label, *parts)), look, placed(members, place)))
    return lines


def shown_datasets(scores: Scores, *, is_every: bool = False) -> tuple[DatasetInfo, ...]:
    """Return the datasets with a panel."""
    # Unless `is_every`, a category's average replaces its datasets, except if they have different
    # metrics.
    averaged = {
        dataset.task for dataset in scores.averages if dataset.metric != "mixed" and not is_every
    }
    return tuple(
        dataset
        for dataset in scores.datasets
        if (dataset.is_average and dataset.task in averaged)
        or (not dataset.is_average and dataset.task not in averaged)
    )


def points_of(
    scores: Scores, places: Iterable[tuple[float, ModelInfo, DatasetInfo]]
) -> tuple[Point, ...]:
    """Return the scores of models on datasets at given positions; those without one are absent."""
    found = ((x, m.name, scores.get(m.name, d.name).estimate) for x, m, d in places)
    return tuple(
        Point(x, estimate.mean, *estimate.ends, scores.written_names[name])
        for x, name, estimate in found
        if estimate is not None
    )


def interval_note(scores: Scores) -> str:
    """Return a sentence about the intervals and the variance that they do not cover."""
    numbers = sorted(
        {
            score.estimate.num_seeds
            for score in scores.cells.values()
            if score.estimate is not None and score.estimate.half_width is not None
        }
    )
    convention = scores.convention
    share = expected_coverage(numbers[0], convention=convention) if numbers else 0.0
    return words().intervals(scores, numbers, METHODS[convention], round(100 * share))
