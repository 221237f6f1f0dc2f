"""Figures of single runs: losses of training, and scores by the learning rate of fine-tuning.

Training losses are means over neighbouring steps, because single batches are noisy; held-out losses
are not smoothed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, cycle
from statistics import fmean
from typing import Literal

import numpy as np

from biphasic.amounts import amount, count, rate, round_ticks
from biphasic.analysis.curves import Curve, Losses, LossKind
from biphasic.analysis.estimate import estimate
from biphasic.analysis.figures.chart import (
    Axis,
    Chart,
    Panel,
    Point,
    Series,
    Skipped,
    arm_styles,
    numbered,
    steps_text,
    ticks_at,
)
from biphasic.analysis.records import ArmData, StudyRecords
from biphasic.analysis.scores.source import study_scores
from biphasic.analysis.scores.table import UNTRAINED, Scores
from biphasic.analysis.text import OBJECTIVES, flat, metric_name, objective_name
from biphasic.analysis.words import words
from biphasic.facts import only
from biphasic.palette import MARKERS, SeriesStyle, distinct_styles, objective_styles

LOSS_FIGURE = "continued-losses"
LOSS_TITLE = "Losses of continued training"
_KINDS: tuple[tuple[LossKind, str], ...] = (
    ("heldout", "Held-out {} loss"),
    ("training", "Training loss during {}"),
)
_MAX_POINTS = 120  # maximum number of points of a line


def study_losses(records: StudyRecords) -> Chart | Skipped:
    """Draw held-out and training losses by tokens, with a level before training."""
    name, title = "loss", "Losses of training"
    losses = {arm.name: arm.losses for arm in records.arms if arm.record.family != UNTRAINED}
    floors = (arm for arm in records.arms if arm.name not in losses and arm.final_heldout)
    floor = next(floors, None)
    panels = _panels(records.arms, losses, arm_styles(records.arms), place="tokens", floor=floor)
    if not panels:
        return Skipped(name, title, "no arm is trained yet")
    ticks = ((float(tick), amount(tick)) for tick in round_ticks(0, _end(panels), most=4))
    axis = Axis("training tokens", "linear", tuple(ticks))
    return Chart(name, title, "", axis, panels)


def continued_losses(records: StudyRecords) -> Chart | Skipped:
    """Draw losses of continued training (the paper's Figure 12)."""
    name, title = LOSS_FIGURE, LOSS_TITLE
    arms = [arm for arm in records.arms if arm.record.continued_steps and arm.record.is_final]
    if not arms:
        return Skipped(name, title, "no finished model was continued")
    losses: dict[str, Losses] = {}
    for arm in arms:  # steps count from the finished model
        first = arm.record.steps - arm.record.continued_steps
        own: Losses = {
            (kind, name): _since(curve, first + (kind == "training"), first)
            for (kind, name), curve in arm.losses.items()
        }
        trained = {n for (kind, n), curve in own.items() if kind == "training" and len(curve.steps)}
        losses[arm.name] = {key: curve for key, curve in own.items() if key[1] in trained}
    styles = distinct_styles([arm.name for arm in arms])
    panels = _panels(arms, losses, styles, place="steps", floor=None)
    if not panels:
        return Skipped(name, title, "no losses were logged in continued training")
    caption = (
        f"{title}; step 0 is the finished model. Training losses are means over neighbouring steps."
    )
    end = _end(panels)
    axis = Axis("steps of continued training", "linear", ticks_at((0.0, end / 2, end), steps_text))
    return Chart(name, title, numbered(caption, 12), axis, panels)


def _since(curve: Curve, step: int, origin: int) -> Curve:
    chosen = curve.steps >= step
    steps, tokens, phases = curve.steps[chosen], curve.tokens[chosen], curve.phases[chosen]
    return Curve(steps - origin, tokens, curve.losses[chosen], phases)


def _panels(
    arms: Sequence[ArmData],
    losses: Mapping[str, Losses],
    styles: Mapping[str, SeriesStyle],
    *,
    place: Literal["steps", "tokens"],
    floor: ArmData | None,
) -> tuple[Panel, ...]:
    """Return a panel for each kind of loss and objective with data."""
    levels = {} if floor is None else floor.final_heldout
    floor_name = "untrained" if floor is None or floor.is_untrained else flat(floor.label)
    panels = []
    objectives = sorted({name for of_arm in losses.values() for _, name in of_arm})
    for kind, title in _KINDS:
        for objective in dict.fromkeys((*OBJECTIVES, *objectives)):
            drawn = [
                (arm, curve)
                for arm in arms
                if (curve := losses.get(arm.name, {}).get((kind, objective)))
            ]
            # The same for all lines: a line of means over fewer steps would look less stable.
            size = -(-max((len(curve.steps) for _, curve in drawn), default=0) // _MAX_POINTS)
            series = [
                line
                for arm, curve in drawn
                for line in _lines(arm, curve, styles[arm.name], kind=kind, place=place, size=size)
            ]
            if series:
                unit = only({arm.state.loss_unit(objective) for arm, _ in drawn if arm.state})
                level = levels.get(objective) if kind == "heldout" else None
                panel = Panel(
                    f"{kind}-{objective}", title.format(objective_name(objective)),
                    unit, tuple(series), level, floor_name,
                )  # fmt: skip
                panels.append(replace(panel, top=_top(panel)))
    return tuple(panels)


def _lines(
    arm: ArmData, curve: Curve, style: SeriesStyle, *, kind: str, place: str, size: int
) -> Iterator[Series]:
    """Yield a curve with one point for every `size` of its points, and a gap between phases."""
    for phase in np.unique(curve.phases):
        chosen = curve.phases == phase
        # Cut at the same steps in all lines, so that training which arms share looks the same.
        cuts = size * np.arange(1, int(chosen.sum()) // size)
        parts = [np.split(values[chosen], cuts)
                 for values in (getattr(curve, place), curve.losses)]  # fmt: skip
        points = tuple(
            Point(float(np.mean(x)), float(np.mean(losses)), model=arm.name)
            if kind == "training"
            else Point(float(x[-1]), float(losses[-1]), model=arm.name)
            for x, losses in zip(*parts, strict=True)
        )
        is_marked = kind == "heldout" and len(points) <= 24
        yield Series(flat(arm.label), style, points, has_markers=is_marked)


def _end(panels: Sequence[Panel]) -> float:
    return max(point.x for panel in panels for point in panel.points)


def _top(panel: Panel) -> float:
    """Return an upper limit at which the losses below the start fill the panel."""
    # The MLM loss of a causal model can end far above its start. Its line is then cut off, and its
    # label has the last value.
    level = [] if panel.floor is None else [panel.floor]
    starts = {line.points[0].model: line.points[0].mean for line in reversed(panel.series)}
    ends = {line.points[0].model: line.points[-1].mean for line in panel.series}
    middle = sorted([*ends.values(), *level])[(len(ends) + len(level)) // 2]
    reasonable = max(level or starts.values())
    return min(max(*starts.values(), *ends.values(), *level), max(reasonable, middle) * 1.02)


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
        styles = distinct_styles(names)
        labels = [(scores.labels[runs[0]], styles[runs]) for runs in names]
    lines = [(*look, runs) for look, runs in zip(labels, names, strict=True)]
    # Means exclude diverged runs.
    lost = [f"{count(n, 'run')} at {rate(value)}" for value, n in sorted((diverged or {}).items())]
    many = len(names) if len(names) > _MOST_LINES else 0
    caption = words().rates(RATE_TITLE, scores.unit, scores.convention, many, lost)
    return _chart(scores, lines, interval, caption=numbered(caption, 5))


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
