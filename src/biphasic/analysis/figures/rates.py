"""Figures of scores by the learning rate of fine-tuning."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from biphasic.analysis.estimate import estimate
from biphasic.analysis.figures.chart import Axis, Chart, Panel, Point, Series, Skipped, ticks_at
from biphasic.analysis.figures.palette import (
    SeriesStyle,
    arm_styles,
    distinct_styles,
    objective_styles,
)
from biphasic.analysis.records import Outcome, StudyRecords
from biphasic.analysis.scores.table import PERCENT
from biphasic.analysis.text import count, listing, metric_name, rate
from biphasic.records import Convention

RATE_FIGURE = "learning-rate"
RATE_TITLE = "Scores by learning rate of fine-tuning"
_MOST_ARMS = 7
"""Maximum number of arms with distinct styles."""
Looks = Mapping[str, tuple[str, SeriesStyle]]
"""Label and style of each arm."""
Ends = Callable[[Sequence[float]], tuple[float | None, float | None]]
"""A function from the scores at one rate to the ends of an interval."""


def scores_by_learning_rate(
    records: StudyRecords, *, convention: Convention | None = None
) -> Chart | Skipped:
    """Draw mean test scores at each learning rate, without selection (the paper's Figure 5).

    Up to seven arms have distinct styles and intervals. With more arms, styles show only the
    objective, and intervals are omitted.
    """
    arms = [arm for arm in records.arms if not arm.is_untrained and arm.record.is_final]
    if len(arms) > _MOST_ARMS:
        what = f"mean over seeds; each line is one of {len(arms)} arms"
        families = objective_styles(arm.record.family for arm in arms)
        looks = {arm.name: (arm.record.family, families[arm.record.family]) for arm in arms}
        chart = _chart(records, looks, lambda _: (None, None))
    else:
        convention = convention or records.study.convention
        what = f"mean over seeds with its 95 % interval (convention '{convention}')"
        styles = distinct_styles([arm.name for arm in arms])
        looks = {arm.name: (arm.label, styles[arm.name]) for arm in arms}
        chart = _chart(records, looks, partial(_interval, convention=convention))
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
    looks = {arm.name: (arm.label, styles[arm.name]) for arm in records.arms}
    chart = _chart(records, looks, lambda scores: (min(scores), max(scores)))
    if isinstance(chart, Skipped):
        return chart
    titles = {task.name: task.title for task in records.tasks}
    panels = tuple(replace(panel, title=titles[panel.key]) for panel in chart.panels)
    return replace(chart, panels=panels)


def _chart(records: StudyRecords, looks: Looks, ends: Ends) -> Chart | Skipped:
    name, title = RATE_FIGURE, RATE_TITLE
    if len(set(records.study.learning_rates)) < 2:
        return Skipped(name, title, "needs fine-tuning at two learning rates or more")
    groups, panels = records.by_cell, []
    for task in records.tasks:
        if task.is_zero_shot:
            continue
        lines = {arm: _points(groups.get((arm, task.name), ()), task.metric, ends) for arm in looks}
        series = tuple(Series(*looks[arm], points) for arm, points in lines.items() if points)
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


def _points(outcomes: Sequence[Outcome], metric: str, ends: Ends) -> tuple[Point, ...]:
    by_rate: dict[float, list[float]] = {}
    for outcome in outcomes:
        score = outcome.score("test", metric)
        if score is not None:
            by_rate.setdefault(outcome.run.learning_rate, []).append(PERCENT * score)
    return tuple(
        Point(learning_rate, math.fsum(scores) / len(scores), *ends(scores), outcomes[0].run.arm)
        for learning_rate, scores in sorted(by_rate.items())
    )


def _diverged(records: StudyRecords) -> str:
    """Return a sentence about diverged runs, which means exclude."""
    lost = Counter(o.run.learning_rate for o in records.outcomes if o.status == "diverged")
    if not lost:
        return ""
    parts = [f"{count(number, 'run')} at {rate(value)}" for value, number in sorted(lost.items())]
    return f"Diverged runs, excluded from means: {listing(parts)}."
