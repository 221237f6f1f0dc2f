"""How much scores depend on the learning rate of fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from biphasic.analysis.estimate import estimate
from biphasic.analysis.load import ArmData, Outcome, StudyRecords
from biphasic.analysis.palette import SeriesStyle, distinct_styles, objective_styles
from biphasic.analysis.plots.chart import Axis, Chart, Panel, Point, Series, Skipped, ticks_at
from biphasic.analysis.score_table import PERCENT
from biphasic.analysis.text import count, listing, metric_name, rate
from biphasic.records import Convention

RATE_FIGURE = "learning-rate"
RATE_TITLE = "Scores by learning rate of fine-tuning"
_MOST_ARMS = 7
"""More lines than this cannot be told apart one by one."""


def scores_by_learning_rate(
    records: StudyRecords, *, convention: Convention | None = None
) -> Chart | Skipped:
    """Draw mean test scores at each learning rate, without any selection (the paper's Figure 5).

    Up to seven arms are told apart one by one; of more, lines tell the objective alone and have no
    intervals, which could not be read.

    Args:
        records: A study's.
        convention: Of the intervals; replaces the study's own.
    """
    name, title = RATE_FIGURE, RATE_TITLE
    if len(set(records.study.learning_rates)) < 2:
        return Skipped(name, title, "needs fine-tuning at two learning rates or more")
    arms = [arm for arm in records.arms if not arm.is_untrained and arm.record.is_final]
    convention = convention or records.study.convention
    looks, is_crowded = _looks(arms), len(arms) > _MOST_ARMS
    groups = records.by_cell()
    panels = []
    for task in records.tasks:
        if task.is_zero_shot:
            continue
        series = tuple(
            Series(*looks[arm.name], found)
            for arm in arms
            if (
                found := _points(
                    groups.get((arm.name, task.name), ()),
                    metric=task.metric,
                    convention=convention,
                    has_intervals=not is_crowded,
                )
            )
        )
        if series:
            unit = f"test {metric_name(task.metric)}, %"
            panels.append(Panel(task.name, task.name, unit, series))
    if not panels:
        return Skipped(name, title, "no fine-tuning of a trained model has finished")
    what = (
        f"mean over seeds; each line is one of {len(arms)} arms"
        if is_crowded
        else f"mean over seeds with its 95 % interval (convention '{convention}')"
    )
    caption = f"{title}: {what}. {_diverged(records)}"
    places = [point.x for panel in panels for each in panel.series for point in each.points]
    axis = Axis("learning rate", "log", ticks_at(places, rate))
    return Chart(name, title, caption.strip(), axis, tuple(panels))


def _looks(arms: Sequence[ArmData]) -> Mapping[str, tuple[str, SeriesStyle]]:
    if len(arms) <= _MOST_ARMS:
        styles = distinct_styles([arm.name for arm in arms])
        return {arm.name: (arm.label, styles[arm.name]) for arm in arms}
    families = objective_styles(arm.record.family for arm in arms)
    return {arm.name: (arm.record.family, families[arm.record.family]) for arm in arms}


def _points(
    outcomes: Sequence[Outcome], *, metric: str, convention: Convention, has_intervals: bool
) -> tuple[Point, ...]:
    by_rate: dict[float, list[float]] = {}
    for outcome in outcomes:
        score = outcome.score("test", metric)
        if score is not None:
            by_rate.setdefault(outcome.run.learning_rate, []).append(PERCENT * score)
    points = []
    for learning_rate, scores in sorted(by_rate.items()):
        found = estimate(scores, convention=convention)
        if found is None:
            continue
        has_bar = has_intervals and found.half_width is not None
        ends = (found.low, found.high) if has_bar else (None, None)
        points.append(Point(learning_rate, found.mean, *ends, outcomes[0].run.arm))
    return tuple(points)


def _diverged(records: StudyRecords) -> str:
    """Say which rates have runs without a score, as means leave those out."""
    lost: dict[float, int] = {}
    for outcome in records.outcomes:
        if outcome.status == "diverged":
            rates = outcome.run.learning_rate
            lost[rates] = lost.get(rates, 0) + 1
    if not lost:
        return ""
    parts = [f"{count(number, 'run')} at {rate(value)}" for value, number in sorted(lost.items())]
    return f"Diverged, and in no mean: {listing(parts)}."
