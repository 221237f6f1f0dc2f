"""Figures of single runs: losses of training, and scores by the learning rate of fine-tuning.

Training losses are means over neighbouring steps, because single batches are noisy; held-out losses
are not smoothed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, cycle
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame

from biphasic.amounts import amount, count, rate, round_ticks
from biphasic.analysis.curves import Curve, Losses, LossKind
from biphasic.analysis.estimate import estimate
from biphasic.analysis.figures.chart import Axis, Chart, Frame, Panel, Skipped, points_of, ticks_at
from biphasic.analysis.records import ArmData, StudyRecords
from biphasic.analysis.scores.source import study_scores
from biphasic.analysis.scores.table import UNTRAINED, Scores
from biphasic.analysis.text import OBJECTIVES, flat, metric_name, objective_name
from biphasic.analysis.words import words
from biphasic.facts import only
from biphasic.palette import (
    FLOOR,
    LINES,
    MARKERS,
    SERIES,
    SeriesStyle,
    distinct_styles,
    objective_styles,
)

LOSS_FIGURE = "continued-losses"
LOSS_TITLE = "Losses of continued training"
_KINDS: tuple[tuple[LossKind, str], ...] = (
    ("heldout", "Held-out {} loss"),
    ("training", "Training loss during {}"),
)
_MAX_POINTS = 120  # maximum number of points of a line
_MOST_MARKERS = 24  # of a line


def arm_styles(arms: Sequence[ArmData]) -> dict[str, SeriesStyle]:
    """Return a style for each arm, in the study's order; the untrained encoder is grey."""
    styles = distinct_styles([arm.name for arm in arms if not arm.is_untrained])
    styles = {
        name: replace(style, line=LINES[index // len(SERIES) % len(LINES)])
        for index, (name, style) in enumerate(styles.items())
    }
    return {arm.name: styles.get(arm.name, SeriesStyle(FLOOR, "o", ":")) for arm in arms}


def study_losses(records: StudyRecords) -> Chart | Skipped:
    """Draw held-out and training losses by tokens, with a level before training."""
    losses = {arm.name: arm.losses for arm in records.arms if arm.record.family != UNTRAINED}
    floors = (arm for arm in records.arms if arm.name not in losses and arm.final_heldout)
    chart = Chart("loss", "Losses of training", "", Axis("training tokens", "linear", ()), (),
                  DataFrame())  # fmt: skip
    return _losses(
        chart, records.arms, losses, arm_styles(records.arms), floor=next(floors, None),
        ticks=lambda end: ticks_at(round_ticks(0, end, most=4), amount),
    ) or Skipped(chart.name, chart.title, "no arm is trained yet")  # fmt: skip


def continued_losses(records: StudyRecords) -> Chart | Skipped:
    """Draw losses of continued training (the paper's Figure 12)."""
    arms = [arm for arm in records.arms if arm.record.continued_steps and arm.record.is_final]
    if not arms:
        return Skipped(LOSS_FIGURE, LOSS_TITLE, "no finished model was continued")
    losses: dict[str, Losses] = {}
    for arm in arms:  # steps count from the finished model
        first = arm.record.steps - arm.record.continued_steps
        own: Losses = {
            (kind, name): _since(curve, first + (kind == "training"), first)
            for (kind, name), curve in arm.losses.items()
        }
        trained = {n for (kind, n), curve in own.items() if kind == "training" and len(curve.steps)}
        losses[arm.name] = {key: curve for key, curve in own.items() if key[1] in trained}
    axis = Axis("steps of continued training", "linear", ())
    chart = Chart(LOSS_FIGURE, LOSS_TITLE, words().continued(LOSS_TITLE), axis, (), DataFrame())
    return _losses(
        chart, arms, losses, distinct_styles([arm.name for arm in arms]),
        ticks=lambda end: ticks_at((0.0, end / 2, end), lambda x: amount(x).replace(" ", "")),
    ) or Skipped(LOSS_FIGURE, LOSS_TITLE, "no loss was logged in continued training")  # fmt: skip


def _since(curve: Curve, step: int, origin: int) -> Curve:
    chosen = curve.steps >= step
    steps, tokens, phases = curve.steps[chosen], curve.tokens[chosen], curve.phases[chosen]
    return Curve(steps - origin, tokens, curve.losses[chosen], phases)


def _losses(
    chart: Chart,
    arms: Sequence[ArmData],
    losses: Mapping[str, Losses],
    styles: Mapping[str, SeriesStyle],
    *,
    ticks: Callable[[float], Any],
    floor: ArmData | None = None,
) -> Chart | None:
    """Fill a chart with a panel for each kind of loss and objective; None without losses."""
    place = "tokens" if "tokens" in chart.axis.label else "steps"
    floor_name = "untrained" if floor is None or floor.is_untrained else flat(floor.label)
    objectives = sorted({name for of_arm in losses.values() for _, name in of_arm})
    panels, frames = list[Panel](), list[Frame]()
    for kind, title in _KINDS:
        for objective in dict.fromkeys((*OBJECTIVES, *objectives)):
            curves = [
                (arm, curve)
                for arm in arms
                if (curve := losses.get(arm.name, {}).get((kind, objective)))
            ]
            # The same for all lines: a line of means over fewer steps would look less stable.
            longest = max((len(curve.steps) for _, curve in curves), default=0)
            cut = partial(_points, is_mean=kind == "training", size=-(-longest // _MAX_POINTS))
            rows = [
                {"panel": f"{kind}-{objective}", "series": flat(arm.label), "line": arm.name,
                 "model": arm.name, "style": styles[arm.name], **point}
                for arm, curve in curves
                for point in cut(curve, getattr(curve, place))
            ]  # fmt: skip
            if rows:
                frames.append(points_of(DataFrame(rows)))
                unit = only({arm.state.loss_unit(objective) for arm, _ in curves if arm.state})
                level = None
                if floor is not None and kind == "heldout":
                    level = floor.final_heldout.get(objective)
                top = _top(frames[-1], [] if level is None else [level])
                named = title.format(objective_name(objective))
                panels.append(Panel(rows[0]["panel"], named, unit, level, floor_name, top))
    if not panels:
        return None
    points = pd.concat(frames, ignore_index=True)
    axis = replace(chart.axis, ticks=ticks(max(points["x"])))
    return replace(chart, axis=axis, panels=tuple(panels), points=points)


def _points(curve: Curve, places: Any, *, is_mean: bool, size: int) -> Iterator[dict[str, Any]]:
    """Yield one point for every `size` points of a curve; each phase is a part of its own."""
    for phase in np.unique(curve.phases):
        chosen = curve.phases == phase
        # Cut at the same steps in all lines, so that training which arms share looks the same.
        cuts = size * np.arange(1, int(chosen.sum()) // size)
        xs, losses = (np.split(values[chosen], cuts) for values in (places, curve.losses))
        for x, part in zip(xs, losses, strict=True):
            place, loss = (np.mean(x), np.mean(part)) if is_mean else (x[-1], part[-1])
            yield {"part": int(phase), "x": float(place), "mean": float(loss),
                   "has_markers": not is_mean and len(xs) <= _MOST_MARKERS}  # fmt: skip


def _top(points: Frame, level: list[float]) -> float:
    """Return an upper limit at which the losses below the start fill the panel."""
    # The MLM loss of a causal model can end far above its start. Its line is then cut off, and its
    # label has the last value.
    lines = points.groupby("line", sort=False)["mean"]
    starts, ends = [*lines.first()], [*lines.last()]
    middle = sorted([*ends, *level])[(len(ends) + len(level)) // 2]
    return min(max(*starts, *ends, *level), max(*(level or starts), middle) * 1.02)


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
    is_many = len(names) > _MOST_LINES

    def interval(values: Sequence[float]) -> tuple[float | None, float | None]:
        score = estimate(values, convention=scores.convention)
        return (None, None) if score is None or is_many else score.ends

    firsts = [group[0] for group in shown]
    if is_many:
        looks = objective_styles(model.objective for model in firsts)
        optimizers = [*dict.fromkeys(model.optimizer for model in firsts)]
        marks = dict(zip(optimizers, cycle(MARKERS)))
        labels = [
            (model.objective or "unknown objective", looks[model.objective]) for model in firsts
        ]
        if len(optimizers) > 1:
            labels = [
                (f"{name}, {model.optimizer}", replace(look, marker=marks[model.optimizer]))
                for (name, look), model in zip(labels, firsts, strict=True)
            ]
    else:
        styles = distinct_styles(names)
        labels = [(scores.labels[runs[0]], styles[runs]) for runs in names]
    lines = [(*look, runs) for look, runs in zip(labels, names, strict=True)]
    # Means exclude diverged runs.
    lost = [f"{count(n, 'run')} at {rate(value)}" for value, n in sorted((diverged or {}).items())]
    caption = words().rates(
        RATE_TITLE, scores.unit, scores.convention, len(names) if is_many else 0, lost
    )
    return _rates(scores, lines, interval, caption=caption)


def rates_of_arms(records: StudyRecords) -> Chart | Skipped:
    """Draw every arm's test scores at each learning rate, with the range over seeds."""
    styles, titles = arm_styles(records.arms), {task.name: task.title for task in records.tasks}
    lines = [(arm.label, styles[arm.name], (arm.name,)) for arm in records.arms]
    scores = study_scores(records)
    return _rates(scores, lines, lambda found: (min(found), max(found)), titles=titles)


def _rates(
    scores: Scores, lines: Iterable[Line], ends: Ends, *, caption: str = "",
    titles: Mapping[str, str] | None = None,
) -> Chart | Skipped:  # fmt: skip
    names, runs = scores.written_names, scores.runs or scores
    tuned = {dataset.name: dataset for dataset in runs.datasets if not dataset.is_zero_shot}
    if not tuned:
        return Skipped(RATE_FIGURE, RATE_TITLE, "no task is fine-tuned")
    tried = (score.by_rate for (_, name), score in runs.cells.items() if name in tuned)
    if len(set(chain.from_iterable(tried))) == 1:
        return Skipped(RATE_FIGURE, RATE_TITLE, "needs fine-tuning at two learning rates or more")
    rows = []
    for dataset in tuned:
        for label, style, arms in lines:
            by_rate: dict[float, list[float]] = defaultdict(list)
            for arm in arms:
                for learning_rate, values in runs.get(arm, dataset).by_rate.items():
                    by_rate[learning_rate] += values if len(arms) == 1 else [fmean(values)]
            rows += [
                (dataset, label, arms[0], style, x, fmean(values), *ends(values), names[arms[0]])
                for x, values in by_rate.items()
            ]
    if not rows:
        reason = "no fine-tuning of a trained model has finished"
        return Skipped(RATE_FIGURE, RATE_TITLE, reason)
    columns = ["panel", "series", "line", "style", "x", "mean", "low", "high", "model"]
    points = points_of(DataFrame(rows, columns=columns))
    panels = tuple(
        Panel(name, (titles or {}).get(name, name), f"test {metric_name(dataset.metric)}, %")
        for name, dataset in tuned.items()
        if name in {*points["panel"]}
    )
    axis = Axis("learning rate", "log", ticks_at(points["x"], rate))
    return Chart(RATE_FIGURE, RATE_TITLE, caption, axis, panels, points)
