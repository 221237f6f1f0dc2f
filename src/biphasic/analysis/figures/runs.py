"""Figures of single runs: losses of training, and scores by the learning rate of fine-tuning.

Training losses are means over neighbouring steps, because single batches are noisy; held-out losses
are not smoothed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, product
from operator import itemgetter
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame

from biphasic.amounts import amount, count, rate, round_ticks
from biphasic.analysis.curves import Curve, Losses, LossKind
from biphasic.analysis.estimate import estimate
from biphasic.analysis.figures.catalog import by_model, models_of, short_steps
from biphasic.analysis.figures.chart import (
    Chart,
    Frame,
    Skipped,
    Spec,
    chart_of,
    ticks_at,
    ticks_of,
)
from biphasic.analysis.records import ArmData, StudyRecords
from biphasic.analysis.scores.source import study_scores
from biphasic.analysis.scores.table import UNTRAINED, ModelInfo, Scores
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


LOSSES = Spec(
    None, "loss", "Losses of training", lambda m: m[m["is_trained"]], "tokens", lambda m, _: m,
    "training tokens", lambda points: ticks_at(round_ticks(0, max(points["x"]), most=4), amount),
    note=None, lacking="no arm is trained yet",
)  # fmt: skip
CONTINUED = Spec(
    12, LOSS_FIGURE, LOSS_TITLE, lambda m: m[m["is_continued"]], "steps",
    lambda m, _: m.assign(style=m["name"].map(distinct_styles([*m["name"]]))),
    "steps of continued training",
    lambda points: ticks_at((0.0, max(points["x"]) / 2, max(points["x"])), short_steps),
    note=lambda _: words().continued(), lacking="no loss was logged in continued training",
)  # fmt: skip


def arms_of(records: StudyRecords) -> Frame:
    """Return a row for each arm."""
    styles = arm_styles(records.arms)
    return DataFrame([
        {"name": arm.name, "model": arm.name, "line": arm.name, "series": flat(arm.label),
         "style": styles[arm.name], "is_trained": arm.record.family != UNTRAINED,
         "is_continued": arm.record.continued_steps > 0 and arm.record.is_final}
        for arm in records.arms
    ])  # fmt: skip


def study_losses(records: StudyRecords) -> Chart | Skipped:
    """Chart held-out and training losses by tokens, with a level before training."""
    floors = (arm for arm in records.arms if arm.record.family == UNTRAINED and arm.final_heldout)
    losses = {arm.name: arm.losses for arm in records.arms if arm.record.family != UNTRAINED}
    values = _loss_values(records.arms, losses, floor=next(floors, None))
    return chart_of(LOSSES, arms_of(records), values)


def continued_losses(records: StudyRecords) -> Chart | Skipped:
    """Chart losses of continued training (the paper's Figure 12)."""
    losses: dict[str, Losses] = {}
    for arm in records.arms:  # steps count from the finished model
        if not (arm.record.continued_steps and arm.record.is_final):
            continue
        first = arm.record.steps - arm.record.continued_steps
        own: Losses = {
            (kind, name): _since(curve, first + (kind == "training"), first)
            for (kind, name), curve in arm.losses.items()
        }
        trained = {n for (kind, n), curve in own.items() if kind == "training" and len(curve.steps)}
        losses[arm.name] = {key: curve for key, curve in own.items() if key[1] in trained}
    models = arms_of(records)
    if not models["is_continued"].any():
        return Skipped(LOSS_FIGURE, LOSS_TITLE, "no finished model was continued")
    return chart_of(CONTINUED, models, _loss_values(records.arms, losses))


def _since(curve: Curve, step: int, origin: int) -> Curve:
    chosen = curve.steps >= step
    steps, tokens, phases = curve.steps[chosen], curve.tokens[chosen], curve.phases[chosen]
    return Curve(steps - origin, tokens, curve.losses[chosen], phases)


def _loss_values(
    arms: Sequence[ArmData], losses: Mapping[str, Losses], *, floor: ArmData | None = None
) -> Frame:
    """Return a row for each point of the losses of arms; a panel is a kind and an objective."""
    floor_name = "untrained" if floor is None or floor.is_untrained else flat(floor.label)
    objectives = sorted({name for of_arm in losses.values() for _, name in of_arm})
    frames = [DataFrame(columns=["name", "panel", "tokens", "steps"])]
    for (kind, title), objective in product(_KINDS, dict.fromkeys((*OBJECTIVES, *objectives))):
        curves = [
            (arm, curve)
            for arm in arms
            if (curve := losses.get(arm.name, {}).get((kind, objective)))
        ]
        # The same for all lines: a line of means over fewer steps would look less stable.
        longest = max((len(curve.steps) for _, curve in curves), default=0)
        cut = partial(_points, is_mean=kind == "training", size=-(-longest // _MAX_POINTS))
        rows = DataFrame([{"name": arm.name, **at} for arm, curve in curves for at in cut(curve)])
        if rows.empty:
            continue
        level = floor.final_heldout.get(objective) if floor and kind == "heldout" else None
        frames.append(rows.assign(
            panel=f"{kind}-{objective}", heading=title.format(objective_name(objective)),
            unit=only({arm.state.loss_unit(objective) for arm, _ in curves if arm.state}),
            floor=level, floor_name=floor_name, top=_top(rows, [] if level is None else [level]),
        ))  # fmt: skip
    return pd.concat(frames[1:] or frames, ignore_index=True)


def _points(curve: Curve, *, is_mean: bool, size: int) -> Iterator[dict[str, Any]]:
    """Yield one point for every `size` points of a curve; each phase is a part of its own."""
    take = np.mean if is_mean else itemgetter(-1)
    for phase in np.unique(curve.phases):
        chosen = curve.phases == phase
        # Cut at the same steps in all lines, so that training which arms share looks the same.
        cuts = size * np.arange(1, int(chosen.sum()) // size)
        columns = (curve.steps, curve.tokens, curve.losses)
        parts = [*zip(*(np.split(column[chosen], cuts) for column in columns), strict=True)]
        for part in parts:
            steps, tokens, loss = (float(take(values)) for values in part)
            yield {"part": int(phase), "steps": steps, "tokens": tokens, "mean": loss,
                   "has_markers": not is_mean and len(parts) <= _MOST_MARKERS}  # fmt: skip


def _top(points: Frame, level: list[float]) -> float:
    """Return an upper limit at which the losses below the start fill the panel."""
    # The MLM loss of a causal model can end far above its start. Its line is then cut off, and its
    # label has the last value.
    lines = points.groupby("name", sort=False)["mean"]
    starts, ends = [*lines.first()], [*lines.last()]
    middle = sorted([*ends, *level])[(len(ends) + len(level)) // 2]
    return min(max([*points["mean"], *level]), max(*(level or starts), middle) * 1.02)


RATE_FIGURE = "learning-rate"
RATE_TITLE = "Scores by learning rate of fine-tuning"
_MOST_LINES = 7  # maximum number of lines with distinct styles
# A function from the scores at one rate to the ends of an interval.
Ends = Callable[[Sequence[float]], tuple[float | None, float | None]]


def _by_model_or_objective(m: Frame, x: str) -> Frame:
    """Make a line per model; of many, styles show only the objective and the optimizer."""
    if len(m) <= _MOST_LINES:
        return by_model(m, x)
    looks, series = (
        objective_styles(m["objective"]),
        m["objective"].replace("", "unknown objective"),
    )
    styles, marks = m["objective"].map(looks), dict(zip(m["optimizer"].unique(), cycle(MARKERS)))
    if len(marks) > 1:
        series = series + ", " + m["optimizer"]
        pairs = zip(styles, m["optimizer"], strict=True)
        styles = [replace(look, marker=marks[of]) for look, of in pairs]
    return m.assign(series=series, line=m["name"], style=styles)


RATES = Spec(
    5, RATE_FIGURE, RATE_TITLE, lambda m: m, "rate", _by_model_or_objective, "learning rate",
    ticks_of(rate), "log", lacking="no fine-tuning of a trained model has finished",
)  # fmt: skip


def scores_by_learning_rate(
    scores: Scores, *, diverged: Mapping[float, int] | None = None
) -> Chart | Skipped:
    """Chart mean test scores at each learning rate, without selection (the paper's Figure 5)."""
    # Scores over pretraining runs give a line per recipe, with intervals over its runs; more than
    # seven lines have no intervals. `diverged` counts diverged runs by rate.
    groups = scores.runs.replicates if scores.runs else [(model,) for model in scores.models]
    m = models_of(scores)
    m = m[m["is_final"] & ~m["is_untrained"] & m["name"].isin([group[0].name for group in groups])]
    is_many = len(m) > _MOST_LINES

    def interval(values: Sequence[float]) -> tuple[float | None, float | None]:
        score = estimate(values, convention=scores.convention)
        return (None, None) if score is None or is_many else score.ends

    # Means exclude diverged runs.
    lost = [f"{count(n, 'run')} at {rate(value)}" for value, n in sorted((diverged or {}).items())]
    note = words().rates(scores.unit, scores.convention, len(m) if is_many else 0, lost)
    spec = replace(RATES, note=lambda _: note)
    return _rates(spec, scores, m, groups, interval)


def rates_of_arms(records: StudyRecords) -> Chart | Skipped:
    """Chart every arm's test scores at each learning rate, with the range over seeds."""
    titles, scores = {task.name: task.title for task in records.tasks}, study_scores(records)
    spec = replace(RATES, note=None, line=lambda m, _: m)
    groups = [(model,) for model in scores.models]
    return _rates(spec, scores, arms_of(records), groups, lambda v: (min(v), max(v)), titles=titles)


def _rates(
    spec: Spec, scores: Scores, models: Frame, groups: Iterable[Sequence[ModelInfo]], ends: Ends,
    *, titles: Mapping[str, str] | None = None,
) -> Chart | Skipped:  # fmt: skip
    """Fill a specification with the scores of groups at each rate, under their first names."""
    runs = scores.runs or scores
    tuned = {dataset.name: dataset for dataset in runs.datasets if not dataset.is_zero_shot}
    if not tuned:
        return Skipped(spec.name, spec.title, "no task is fine-tuned")
    tried = defaultdict[str, set[float]](set)
    for (_, name), score in runs.cells.items():
        tried[name].update(score.by_rate)
    if max(len(tried[name]) for name in tuned) == 1:
        return Skipped(spec.name, spec.title, "needs fine-tuning at two learning rates or more")
    rows = []
    for name, dataset in tuned.items():
        heading, unit = (titles or {}).get(name, name), f"test {metric_name(dataset.metric)}, %"
        for group in groups:
            by_rate: dict[float, list[float]] = defaultdict(list)
            for model in group:
                for learning_rate, values in runs.get(model.name, name).by_rate.items():
                    by_rate[learning_rate] += values if len(group) == 1 else [fmean(values)]
            rows += [
                (group[0].name, name, heading, unit, x, fmean(values), *ends(values))
                for x, values in by_rate.items()
            ]
    columns = ["name", "panel", "heading", "unit", "rate", "mean", "low", "high"]
    return chart_of(spec, models, DataFrame(rows, columns=columns))


def run_figures(scores: Scores, records: StudyRecords | None = None) -> Iterator[Chart | Skipped]:
    """Yield each figure of single runs, and of a study's records of training."""
    if records is None and scores.is_published:
        reason = "needs records of single runs, but this is a table of means"
        yield Skipped(RATE_FIGURE, RATE_TITLE, reason)
        yield Skipped(LOSS_FIGURE, LOSS_TITLE, reason)
        return
    results = records.results_of(records.runs) if records else ()
    diverged = Counter(one.learning_rate for one in results if one.status == "diverged")
    yield scores_by_learning_rate(scores, diverged=diverged)
    if records:
        yield continued_losses(records)
    else:
        yield Skipped(LOSS_FIGURE, LOSS_TITLE, "needs records of training, but these are scores")
