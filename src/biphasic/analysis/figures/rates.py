"""Figures of scores by the learning rate of fine-tuning."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from biphasic.amounts import count
from biphasic.analysis.estimate import estimate
from biphasic.analysis.figures.chart import (
    Axis,
    Chart,
    Panel,
    Point,
    Series,
    Skipped,
    numbered,
    ticks_at,
)
from biphasic.analysis.figures.choose import arm_styles
from biphasic.analysis.records import StudyRecords
from biphasic.analysis.scores.source import study_scores
from biphasic.analysis.scores.table import UNTRAINED, Scores
from biphasic.analysis.text import listing, metric_name, rate
from biphasic.palette import SeriesStyle, distinct_styles, objective_styles
from biphasic.records import Convention

RATE_FIGURE = "learning-rate"
RATE_TITLE = "Scores by learning rate of fine-tuning"
_MOST_LINES = 7  # maximum number of lines with distinct styles
# A function from the scores at one rate to the ends of an interval.
Ends = Callable[[Sequence[float]], tuple[float | None, float | None]]


@dataclass(frozen=True)
class _Line:
    """One line of the figure: an arm, or the arms that are pretraining runs of one recipe."""

    label: str
    style: SeriesStyle
    arms: tuple[str, ...]


def scores_by_learning_rate(
    scores: Scores, *, diverged: Mapping[float, int] | None = None
) -> Chart | Skipped:
    """Draw mean test scores at each learning rate, without selection (the paper's Figure 5).

    Up to seven lines have distinct styles and intervals. With more lines, styles show only the
    objective, and intervals are omitted.

    Args:
        scores: Scores over pretraining runs give a line per recipe, with intervals over its runs.
        diverged: Number of diverged runs by learning rate.
    """
    groups = {model.name: (model.name,) for model in scores.models}
    if scores.runs is not None:
        groups = {group[0].name: tuple(m.name for m in group) for group in scores.runs.replicates}
    single = scores.runs or scores
    models = [
        model
        for model in single.models
        if model.name in groups and model.objective != UNTRAINED and model.is_final
    ]
    if len(models) > _MOST_LINES:
        what = f"mean over {scores.unit}s; each line is one of {len(models)} models"
        styles = objective_styles(model.objective for model in models)
        lines = [
            _Line(
                model.objective or "unknown objective", styles[model.objective], groups[model.name]
            )
            for model in models
        ]
        chart = _chart(single, lines, lambda _: (None, None))
    else:
        convention = scores.convention
        what = f"mean over {scores.unit}s with its 95 % interval (convention '{convention}')"
        styles = distinct_styles([model.name for model in models])
        lines = [_Line(scores.labels[m.name], styles[m.name], groups[m.name]) for m in models]
        chart = _chart(single, lines, partial(_interval, convention=convention))
    if isinstance(chart, Skipped):
        return chart
    # Means exclude diverged runs.
    lost = [f"{count(n, 'run')} at {rate(value)}" for value, n in sorted((diverged or {}).items())]
    excluded = f" Diverged runs, excluded from means: {listing(lost)}." if lost else ""
    return replace(chart, caption=numbered(f"{RATE_TITLE}: {what}.{excluded}", 5))


def _interval(
    scores: Sequence[float], *, convention: Convention
) -> tuple[float | None, float | None]:
    score = estimate(scores, convention=convention)
    if score is None or score.half_width is None:
        return None, None
    return score.low, score.high


def rates_of_arms(records: StudyRecords) -> Chart | Skipped:
    """Draw every arm's test scores at each learning rate, with the range over seeds."""
    styles = arm_styles(records.arms)
    lines = [_Line(arm.label, styles[arm.name], (arm.name,)) for arm in records.arms]
    chart = _chart(study_scores(records), lines, lambda scores: (min(scores), max(scores)))
    if isinstance(chart, Skipped):
        return chart
    titles = {task.name: task.title for task in records.tasks}
    panels = tuple(replace(panel, title=titles[panel.key]) for panel in chart.panels)
    return replace(chart, panels=panels)


def _chart(scores: Scores, lines: Sequence[_Line], ends: Ends) -> Chart | Skipped:
    name, title = RATE_FIGURE, RATE_TITLE
    if len({rate for score in scores.cells.values() for rate in score.by_rate}) == 1:
        return Skipped(name, title, "needs fine-tuning at two learning rates or more")
    panels = []
    for dataset in scores.datasets:
        drawn = [(line, _points(scores, line, dataset.name, ends)) for line in lines]
        series = tuple(Series(line.label, line.style, points) for line, points in drawn if points)
        if series and not dataset.is_zero_shot:
            metric = f"test {metric_name(dataset.metric)}, %"
            panels.append(Panel(dataset.name, dataset.name, metric, series))
    if not panels:
        return Skipped(name, title, "no fine-tuning of a trained model has finished")
    places = [point.x for panel in panels for line in panel.series for point in line.points]
    return Chart(
        name, title, "", Axis("learning rate", "log", ticks_at(places, rate)), tuple(panels)
    )


def _points(scores: Scores, line: _Line, dataset: str, ends: Ends) -> tuple[Point, ...]:
    by_rate: dict[float, list[float]] = defaultdict(list)
    for arm in line.arms:
        for learning_rate, values in scores.get(arm, dataset).by_rate.items():
            by_rate[learning_rate] += values if len(line.arms) == 1 else [fmean(values)]
    return tuple(
        Point(learning_rate, fmean(values), *ends(values), line.arms[0])
        for learning_rate, values in sorted(by_rate.items())
    )
