"""Strips: one row per arm with mean, interval and seeds; positions in percent of the width.

The report has them as HTML rows with drawn marks, because text then fits any width. The figure
shows the same strips.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from biphasic.amounts import round_ticks
from biphasic.analysis.estimate import Estimate
from biphasic.analysis.figures.draw import (
    FONT_SIZE,
    drawing,
    fix_ticks,
    head,
    marker_look,
    panels_of,
)
from biphasic.analysis.scores.table import DatasetInfo, ModelInfo, Score, Scores
from biphasic.analysis.text import is_whole, points_cell, shortened, wrap
from biphasic.facts import REFERENCE, is_baseline
from biphasic.palette import FLOOR, GRID, INK, MUTED, SeriesStyle

_OF_BASELINE = SeriesStyle(FLOOR, "D", ":")
_MOST_TICKS = 4
_ROOM = 0.06
_LEAST_ROOM = 0.3  # minimum margin on either side, in percent points
# Outlines around the origin, by matplotlib's names of markers.
_MARKS = {
    "o": "M5 0A5 5 0 1 1-5 0A5 5 0 1 1 5 0Z",
    "s": "M-4.4-4.4H4.4V4.4H-4.4Z",
    "^": "M0-5.4L5.4 4.4H-5.4Z",
    "D": "M0-5.8L5.8 0L0 5.8L-5.8 0Z",
    "v": "M0 5.4L5.4-4.4H-5.4Z",
    "P": "M-1.9-5.4H1.9V-1.9H5.4V1.9H1.9V5.4H-1.9V1.9H-5.4V-1.9H-1.9Z",
    "X": "M-5.2-2.6L-2.6-5.2L0-2.6L2.6-5.2L5.2-2.6L2.6 0L5.2 2.6L2.6 5.2L0 2.6L-2.6 5.2L-5.2 2.6"
    "L-2.6 0Z",
}


@dataclass(frozen=True)
class Scale:
    """A range of scores, with its ticks."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]  # position in percent of the width, and label

    def place(self, score: float) -> float:
        """Return the position of a score, in percent of the width."""
        return round(100 * (score - self.low) / (self.high - self.low), 2)


@dataclass(frozen=True)
class Strip:
    """The marks of one arm; all positions in percent of the width."""

    variable: str
    marker: str  # of the mean
    mean: float
    interval: tuple[float, float] | None
    seeds: tuple[float, ...]
    reference: float | None  # position of the paper's value

    @property
    def mark(self) -> str:
        """The outline of the marker of the mean, for a page."""
        return _MARKS[self.marker]


def axis(scores: Sequence[Score], references: Sequence[Estimate]) -> Scale | None:
    """Return a scale for all scores; None without any."""
    estimates = [score.estimate for score in scores if score.estimate]
    ends = [end for value in (*estimates, *references) for end in (value.low, value.high)]
    ends += [value for score in scores for value in (score.by_seed or {}).values()]
    if not ends:
        return None
    room = max(_ROOM * (max(ends) - min(ends)), _LEAST_ROOM)
    low, high = min(ends) - room, max(ends) + room
    bare = Scale(low, high, ())
    ticks = ((bare.place(tick), f"{tick:g}") for tick in round_ticks(low, high, most=_MOST_TICKS))
    return Scale(low, high, tuple(ticks))


def strip(score: Score, style: SeriesStyle, on: Scale, reference: Estimate | None) -> Strip | None:
    """Return the marks of an arm's score on a scale; None without a score."""
    if score.estimate is None:
        return None
    estimate = score.estimate
    interval = None
    if estimate.half_width is not None:
        interval = on.place(estimate.low), on.place(estimate.high)
    return Strip(
        variable=style.variable,
        marker=style.marker,
        mean=on.place(estimate.mean),
        interval=interval,
        seeds=tuple(on.place(value) for value in (score.by_seed or {}).values()),
        reference=None if reference is None else on.place(reference.mean),
    )


_COLUMNS, _WIDTH, _FIELD, _ROW = 2, 4.1, 1.7, 0.36


def draw_strips(
    scores: Scores, styles: Mapping[str, SeriesStyle], titles: Mapping[str, str]
) -> Figure:
    """Draw the strips of every dataset except averages, in two columns."""
    datasets = [dataset for dataset in scores.datasets if not dataset.is_average]
    num_models = max((len(_shown(scores, dataset)) for dataset in datasets), default=1)
    num_columns = max(1, min(_COLUMNS, len(datasets)))
    rows = -(-len(datasets) // num_columns)
    height = rows * (0.75 + _ROW * num_models)
    with drawing(salt="scores"):
        size = (num_columns * _WIDTH, max(height, 1.0))
        figure, panels = panels_of(len(datasets), num_columns, size)
        for axes, dataset in zip(panels, datasets, strict=True):
            head(axes, titles[dataset.name], f"{dataset.metric_facts.title}, %", width=_FIELD)
            _draw_rows(axes, scores, dataset, styles)
    return figure


def _shown(scores: Scores, dataset: DatasetInfo) -> list[ModelInfo]:
    """Return the models, and the floors and references with a score on a dataset."""
    baselines = (m for m in scores.baselines if scores.get(m.name, dataset.name).estimate)
    return [*scores.models, *baselines]


def _draw_rows(
    axes: Axes, scores: Scores, dataset: DatasetInfo, styles: Mapping[str, SeriesStyle]
) -> None:
    models = _shown(scores, dataset)
    rows = [scores.get(model.name, dataset.name) for model in models]
    on = axis(rows, []) or Scale(0.0, 100.0, ())
    axes.set(xlim=(0, 100), ylim=(len(rows) - 0.5, -0.5))
    fix_ticks(axes, on.ticks)
    shown = shortened((model.label for model in models), is_whole)
    names = [wrap(shown[model.label]) for model in models]
    axes.set_yticks(range(len(rows)), names, fontsize=FONT_SIZE, color=INK, va="center")
    axes.tick_params(axis="y", pad=8)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", color=GRID, linewidth=0.7)
    means = scores.finished.means(dataset.name)
    best = max(means.values(), default=None)
    for y, (model, score) in enumerate(zip(models, rows, strict=True)):
        estimate, style = score.estimate, styles.get(model.name, _OF_BASELINE)
        is_best = model.name in means and means[model.name] == best
        axes.annotate(
            "no score" if estimate is None else points_cell(estimate), (1, y), xytext=(8, 0),
            xycoords=("axes fraction", "data"), textcoords="offset points", va="center",
            fontsize=FONT_SIZE, color=INK if is_best else MUTED,
            fontweight="bold" if is_best else "normal", annotation_clip=False,
        )  # fmt: skip
        drawn = strip(score, style, on, None)
        if drawn is None:
            continue
        if model.is_untrained or is_baseline(model.name):
            is_reference = model.name.startswith(REFERENCE)
            dots = (0, (5, 3)) if is_reference else (0, (1, 2))
            axes.axvline(drawn.mean, color=FLOOR, linewidth=1.1, linestyle=dots)
        if is_baseline(model.name):  # the same for every seed
            drawn = replace(drawn, seeds=())
        interval = {"linewidth": 2.4, "alpha": 0.55, "solid_capstyle": "round"}
        seeds = {"linestyle": "", "marker": "|", "markersize": 6, "alpha": 0.6}
        mean = marker_look(style, size=6.0)
        for places, look in (
            (drawn.interval or (), interval), (drawn.seeds, seeds), ((drawn.mean,), mean),
        ):  # fmt: skip
            options = {**look, "color": style.color, "markeredgewidth": 0.9}
            axes.plot(places, [y] * len(places), **options)
