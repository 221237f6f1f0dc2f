"""Figures of scores by the learning rate of fine-tuning."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, cycle
from statistics import fmean

from biphasic.amounts import count, rate
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
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.text import listing, metric_name
from biphasic.palette import MARKERS, SeriesStyle, distinct_styles, objective_styles

RATE_FIGURE = "learning-rate"
RATE_TITLE = "Scores by learning rate of fine-tuning"
_MOST_LINES = 7  # maximum number of lines with distinct styles
Line = tuple[str, SeriesStyle, tuple[str, ...]]  # label, style, and an arm or the runs of a recipe
# A function from the scores at one rate to the ends of an interval.
Ends = Callable[[Sequence[float]], tuple[float | None, float | None]]


def scores_by_learning_rate(
    scores: Scores, *, diverged: Mapping[float, int] | None = None
) -> Chart | Skipped:
    """Draw mean test scores at each learning rate, without selection (the paper's Figure 5)."""
    # Up to seven lines have distinct styles and intervals. With more lines, styles show only the
    # objective and the optimizer, and intervals are omitted. Scores over pretraining runs give a
    # line per recipe, with intervals over its runs. `diverged` counts diverged runs by rate.
    groups = scores.runs.replicates if scores.runs else [(model,) for model in scores.models]
    shown = [group for group in groups if group[0].is_final and not group[0].is_untrained]
    names = [tuple(model.name for model in group) for group in shown]

    def interval(values: Sequence[float]) -> tuple[float | None, float | None]:
        score = estimate(values, convention=scores.convention)
        return (None, None) if score is None or len(names) > _MOST_LINES else score.ends

    if len(names) > _MOST_LINES:
        what = f"mean over {scores.unit}s; each line is one of {len(names)} models"
        objectives = [group[0].objective for group in shown]
        looks = objective_styles(objectives)
        labels = [(name or "unknown objective", looks[name]) for name in objectives]
        optimizers = [*dict.fromkeys(group[0].optimizer for group in shown)]
        if len(optimizers) > 1:
            marks = dict(zip(optimizers, cycle(MARKERS)))
            labels = [
                (f"{name}, {group[0].optimizer}", replace(look, marker=marks[group[0].optimizer]))
                for (name, look), group in zip(labels, shown, strict=True)
            ]
    else:
        what = f"mean over {scores.unit}s with its 95 % interval (convention '{scores.convention}')"
        styles = distinct_styles(names)
        labels = [(scores.labels[runs[0]], styles[runs]) for runs in names]
    lines = [(*look, runs) for look, runs in zip(labels, names, strict=True)]
    # Means exclude diverged runs.
    lost = [f"{count(n, 'run')} at {rate(value)}" for value, n in sorted((diverged or {}).items())]
    excluded = f" Diverged runs, excluded from means: {listing(lost)}." if lost else ""
    caption = numbered(f"{RATE_TITLE}: {what}.{excluded}", 5)
    return _chart(scores, lines, interval, caption=caption)


def rates_of_arms(records: StudyRecords) -> Chart | Skipped:
    """Draw every arm's test scores at each learning rate, with the range over seeds."""
    styles, titles = arm_styles(records.arms), {task.name: task.title for task in records.tasks}
    lines = [(arm.label, styles[arm.name], (arm.name,)) for arm in records.arms]
    scores = study_scores(records)
    return _chart(scores, lines, lambda found: (min(found), max(found)), titles=titles)


def _chart(
    scores: Scores,
    lines: Sequence[Line],
    ends: Ends,
    *,
    caption: str = "",
    titles: Mapping[str, str] | None = None,
) -> Chart | Skipped:
    names, runs = scores.written_names, scores.runs or scores
    tuned = {dataset.name: dataset for dataset in runs.datasets if not dataset.is_zero_shot}
    if not tuned:
        return Skipped(RATE_FIGURE, RATE_TITLE, "no task is fine-tuned")
    tried = (score.by_rate for (_, name), score in runs.cells.items() if name in tuned)
    if len(set(chain.from_iterable(tried))) == 1:
        return Skipped(RATE_FIGURE, RATE_TITLE, "needs fine-tuning at two learning rates or more")
    panels = []
    for name, dataset in tuned.items():
        series = [
            Series(label, style, points)
            for label, style, arms in lines
            if (points := _points(runs, arms, name, ends, names[arms[0]]))
        ]
        if series:
            metric = f"test {metric_name(dataset.metric)}, %"
            title = titles[name] if titles else name
            panels.append(Panel(name, title, metric, tuple(series)))
    if not panels:
        reason = "no fine-tuning of a trained model has finished"
        return Skipped(RATE_FIGURE, RATE_TITLE, reason)
    places = [point.x for panel in panels for point in panel.points]
    axis = Axis("learning rate", "log", ticks_at(places, rate))
    return Chart(RATE_FIGURE, RATE_TITLE, caption, axis, tuple(panels))


def _points(
    scores: Scores, arms: Sequence[str], dataset: str, ends: Ends, name: str
) -> tuple[Point, ...]:
    by_rate: dict[float, list[float]] = defaultdict(list)
    for arm in arms:
        for learning_rate, values in scores.get(arm, dataset).by_rate.items():
            by_rate[learning_rate] += values if len(arms) == 1 else [fmean(values)]
    return tuple(
        Point(learning_rate, fmean(values), *ends(values), name)
        for learning_rate, values in sorted(by_rate.items())
    )
