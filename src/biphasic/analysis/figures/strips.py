"""Strips: one row per arm with mean, interval and seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from biphasic.analysis.figures.draw import (
    FONT_SIZE,
    drawing,
    head,
    marker_look,
    page_svg,
    panels_of,
)
from biphasic.analysis.scores.reference import ReferenceValues
from biphasic.analysis.scores.table import DatasetInfo, ModelInfo, Score, Scores
from biphasic.analysis.text import flat, points_cell, wrap
from biphasic.analysis.words import words
from biphasic.facts import REFERENCE, is_baseline
from biphasic.palette import FLOOR, GRID, INK, MUTED, SeriesStyle

_OF_BASELINE = SeriesStyle(FLOOR, "D", ":")
_LEAST_ROOM = 0.3  # minimum margin on either side, in percent points
_COLUMNS, _WIDTH, _HEAD = 2, 4.1, 0.75  # columns; of a panel, and above it, in inches
_ROW, _LINE = 0.36, 0.13  # height of a row with two lines of a name, and of each more
_LETTERS = 22  # of a line of a name


def draw_strips(
    scores: Scores,
    styles: Mapping[str, SeriesStyle],
    titles: Mapping[str, str],
    *,
    datasets: Sequence[DatasetInfo] | None = None,
    reference: ReferenceValues | None = None,
) -> Figure:
    """Draw the strips of datasets, by default all except averages, in two columns."""
    # Values of a reference are tall ticks.
    if datasets is None:
        datasets = [dataset for dataset in scores.datasets if not dataset.is_average]
    shown = [_shown(scores, dataset) for dataset in datasets]
    names = {model.name: wrap(model.label, width=_LETTERS, num_lines=6)
             for models in shown for model in models}  # fmt: skip
    lines = max((name.count("\n") + 1 for name in names.values()), default=1)
    columns = max(1, min(_COLUMNS, len(datasets)))
    each = max(map(len, shown), default=1) * (_ROW + _LINE * max(lines - 2, 0))
    size = columns * _WIDTH, max(-(-len(datasets) // columns) * (_HEAD + each), 1.0)
    with drawing(salt="scores"):
        figure, panels = panels_of(len(datasets), columns, size)
        for axes, dataset, models in zip(panels, datasets, shown, strict=True):
            head(axes, titles[dataset.name], f"{dataset.metric_facts.title}, %", letters=24)
            axes.set_yticks(range(len(models)), [names[model.name] for model in models])
            _draw_rows(axes, scores, dataset, models, styles=styles, reference=reference or {})
    return figure


def strips_svg(
    scores: Scores,
    styles: Mapping[str, SeriesStyle],
    dataset: DatasetInfo,
    reference: ReferenceValues,
) -> str:
    """Draw the strips of a dataset as SVG for a page, which has its title."""
    figure = draw_strips(
        scores, styles, {dataset.name: ""}, datasets=[dataset], reference=reference
    )
    cells = [
        (flat(model.label), points_cell(scores.get(model.name, dataset.name).estimate))
        for model in _shown(scores, dataset)
    ]
    name = f"strips-{scores.datasets.index(dataset)}"
    return page_svg(figure, name=name, alt=words().strips(flat(dataset.name), cells))


def _shown(scores: Scores, dataset: DatasetInfo) -> list[ModelInfo]:
    """Return the models, and the floors and references with a score on a dataset."""
    baselines = (m for m in scores.baselines if scores.get(m.name, dataset.name).estimate)
    return [*scores.models, *baselines]


def _draw_rows(
    axes: Axes,
    scores: Scores,
    dataset: DatasetInfo,
    models: Sequence[ModelInfo],
    *,
    styles: Mapping[str, SeriesStyle],
    reference: ReferenceValues,
) -> None:
    axes.tick_params(axis="y", pad=8, labelsize=FONT_SIZE, labelcolor=INK)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", color=GRID, linewidth=0.7)
    means = scores.finished.means(dataset.name)
    best = max(means.values(), default=None)
    for y, model in enumerate(models):
        score = scores.get(model.name, dataset.name)
        is_best = model.name in means and means[model.name] == best
        axes.annotate(
            words().strip(score.estimate), (1, y), xytext=(8, 0),
            xycoords=("axes fraction", "data"), textcoords="offset points", va="center",
            fontsize=FONT_SIZE, color=INK if is_best else MUTED,
            fontweight="bold" if is_best else "normal", annotation_clip=False,
        )  # fmt: skip
        if score.estimate is not None:
            _draw_marks(axes, y, model, score, styles.get(model.name, _OF_BASELINE))
            if theirs := reference.get((model.name, dataset.name)):
                axes.plot(theirs.mean, y, marker="|", markersize=14, color=INK)
    axes.set_ylim(len(models) - 0.5, -0.5)
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    low, high = axes.dataLim.intervalx
    if not low <= high:  # no score
        axes.set_xticks([])
        return
    room = max(0.06 * (high - low), _LEAST_ROOM)
    axes.set_xlim(low - room, high + room)


def _draw_marks(axes: Axes, y: int, model: ModelInfo, score: Score, style: SeriesStyle) -> None:
    """Draw interval, seeds and mean of a model, and the line of a floor."""
    estimate, seeds = score.estimate, [*(score.by_seed or {}).values()]
    assert estimate is not None  # noqa: S101 - it has a score
    if model.is_untrained or is_baseline(model.name):
        dots = (0, (5, 3)) if model.name.startswith(REFERENCE) else (0, (1, 2))
        axes.axvline(estimate.mean, color=FLOOR, linewidth=1.1, linestyle=dots)
    if is_baseline(model.name):  # the same for every seed
        seeds = []
    ends = [] if estimate.half_width is None else [estimate.low, estimate.high]
    for places, look in (
        (ends, {"linewidth": 2.4, "alpha": 0.55, "solid_capstyle": "round"}),
        (seeds, {"linestyle": "", "marker": "|", "markersize": 6, "alpha": 0.6}),
        ([estimate.mean], marker_look(style, size=6.0)),
    ):
        options = {**look, "color": style.color, "markeredgewidth": 0.9}
        axes.plot(places, [y] * len(places), **options)
