"""Figures of scores by the learning rate of fine-tuning."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from biphasic.analysis.estimate import estimate
from biphasic.analysis.figures.chart import Axis, Chart, Panel, Point, Series, Skipped, ticks_at
from biphasic.analysis.figures.palette import (
    SeriesStyle,
    arm_styles,
    distinct_styles,
    objective_styles,
)
from biphasic.analysis.records import StudyRecords
from biphasic.analysis.scores.table import PERCENT, Scores
from biphasic.analysis.text import count, listing, metric_name, rate
from biphasic.records import Convention, TaskRecord

RATE_FIGURE = "learning-rate"
RATE_TITLE = "Scores by learning rate of fine-tuning"
_MOST_LINES = 7
"""Maximum number of lines with distinct styles."""
Ends = Callable[[Sequence[float]], tuple[float | None, float | None]]
"""A function from the scores at one rate to the ends of an interval."""


@dataclass(frozen=True)
class _Line:
    """One line of the figure: an arm, or the arms that are pretraining runs of one recipe."""

    label: str
    style: SeriesStyle
    arms: tuple[str, ...]


def scores_by_learning_rate(records: StudyRecords, scores: Scores) -> Chart | Skipped:
    """Draw mean test scores at each learning rate, without selection (the paper's Figure 5).

    Up to seven lines have distinct styles and intervals. With more lines, styles show only the
    objective, and intervals are omitted.

    Args:
        records: The study's records.
        scores: Their scores, with the convention of intervals. Scores over pretraining runs give a
            line per recipe, with intervals over its runs.
    """
    groups = {model.name: (model.name,) for model in scores.models}
    if scores.runs is not None:
        groups = {group[0].name: tuple(m.name for m in group) for group in scores.runs.replicates}
    arms = [
        arm
        for arm in records.arms
        if arm.name in groups and not arm.is_untrained and arm.record.is_final
    ]
    if len(arms) > _MOST_LINES:
        what = f"mean over {scores.unit}s; each line is one of {len(arms)} models"
        families = objective_styles(arm.record.family for arm in arms)
        lines = [
            _Line(arm.record.family, families[arm.record.family], groups[arm.name]) for arm in arms
        ]
        chart = _chart(records, lines, lambda _: (None, None))
    else:
        convention = scores.convention
        what = f"mean over {scores.unit}s with its 95 % interval (convention '{convention}')"
        styles = distinct_styles([arm.name for arm in arms])
        lines = [_Line(scores.labels[arm.name], styles[arm.name], groups[arm.name]) for arm in arms]
        chart = _chart(records, lines, partial(_interval, convention=convention))
    if isinstance(chart, Skipped):
        return chart
    caption = f"{RATE_TITLE}: {what}. {_diverged(records)}"
    return replace(chart, caption=caption.strip())


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
    chart = _chart(records, lines, lambda scores: (min(scores), max(scores)))
    if isinstance(chart, Skipped):
        return chart
    titles = {task.name: task.title for task in records.tasks}
    panels = tuple(replace(panel, title=titles[panel.key]) for panel in chart.panels)
    return replace(chart, panels=panels)


def _chart(records: StudyRecords, lines: Sequence[_Line], ends: Ends) -> Chart | Skipped:
    name, title = RATE_FIGURE, RATE_TITLE
    if len(set(records.study.learning_rates)) < 2:
        return Skipped(name, title, "needs fine-tuning at two learning rates or more")
    panels = []
    for task in records.tasks:
        if task.is_zero_shot:
            continue
        drawn = [(line, _points(records, line, task, ends)) for line in lines]
        series = tuple(Series(line.label, line.style, points) for line, points in drawn if points)
        if series:
            panels.append(
                Panel(task.name, task.name, f"test {metric_name(task.metric)}, %", series)
            )
    if not panels:
        return Skipped(name, title, "no fine-tuning of a trained model has finished")
    places = [point.x for panel in panels for line in panel.series for point in line.points]
    return Chart(
        name, title, "", Axis("learning rate", "log", ticks_at(places, rate)), tuple(panels)
    )


def _points(records: StudyRecords, line: _Line, task: TaskRecord, ends: Ends) -> tuple[Point, ...]:
    by_rate: dict[float, list[float]] = defaultdict(list)
    for arm in line.arms:
        for learning_rate, scores in _by_rate(records, arm, task).items():
            by_rate[learning_rate] += scores if len(line.arms) == 1 else [fmean(scores)]
    return tuple(
        Point(learning_rate, fmean(scores), *ends(scores), line.arms[0])
        for learning_rate, scores in sorted(by_rate.items())
    )


def _by_rate(records: StudyRecords, arm: str, task: TaskRecord) -> dict[float, list[float]]:
    """Return an arm's test scores at each learning rate, in percentage points."""
    found: dict[float, list[float]] = defaultdict(list)
    for outcome in records.by_cell.get((arm, task.name), ()):
        score = outcome.score("test", task.metric)
        if score is not None:
            found[outcome.run.learning_rate].append(PERCENT * score)
    return found


def _diverged(records: StudyRecords) -> str:
    """Return a sentence about diverged runs, which means exclude."""
    lost = Counter(o.run.learning_rate for o in records.outcomes if o.status == "diverged")
    if not lost:
        return ""
    parts = [f"{count(number, 'run')} at {rate(value)}" for value, number in sorted(lost.items())]
    return f"Diverged runs, excluded from means: {listing(parts)}."
