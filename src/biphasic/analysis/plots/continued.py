"""Continued pretraining: scores before and after it, by its length, and its losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from biphasic.analysis.load import ArmData, Curve, StudyRecords
from biphasic.analysis.palette import (
    SeriesStyle,
    distinct_styles,
    hollow,
    objective_styles,
    ordered_styles,
)
from biphasic.analysis.plots.chart import (
    Axis,
    Chart,
    Panel,
    Point,
    Series,
    Skipped,
    score_panels,
    shown_datasets,
    ticks_at,
)
from biphasic.analysis.plots.choose import (
    grouped,
    shared_places_note,
    sizes,
    steps_text,
)
from biphasic.analysis.plots.notes import interval_note
from biphasic.analysis.score_table import DatasetInfo, ModelInfo, Scores
from biphasic.analysis.text import flat, objective_name

LOSS_FIGURE = "continued-losses"
LOSS_TITLE = "Losses of continued training"
_MAX_POINTS = 120
Begun = tuple[str, str]
"""Size, and what continued training began with."""


def continued_at_one_budget(
    scores: Scores, datasets: Sequence[DatasetInfo] | None = None
) -> Chart | Skipped:
    """Compare starting models before and after equally much more MLM (the paper's Figure 8).

    Args:
        scores: A table.
        datasets: What gets a panel; by default a category's average, or its only dataset.
    """
    name, title = "continued-budget", "Continued pretraining: before and after"
    ways = _ways(scores)
    shared = _longest_shared(ways)
    if shared is None:
        reason = "needs two starting models that were trained on for equally many steps"
        return Skipped(name, title, reason if ways else "no model was trained on after its end")
    begun = [key for key, found in ways.items() if shared in _lengths(found)]
    labels = _start_labels(begun, scores)
    after = ordered_styles(["before", "after"])["after"]
    places = [(float(index), model) for index, key in enumerate(begun) for model in ways[key]]
    lines = [
        ("before", hollow(after), [(x, model) for x, model in places if not model.continued_steps]),
        (
            f"after {shared:,} more steps",
            after,
            [(x, model) for x, model in places if model.continued_steps == shared],
        ),
    ]
    panels = score_panels(
        scores, lines, datasets or shown_datasets(scores), options={"is_connected": False}
    )
    if not panels:
        return Skipped(name, title, "none of its models has a score")
    caption = f"{title} {shared:,} more steps, by what they began with. {interval_note(scores)}"
    ticks = tuple((float(index), labels[key]) for index, key in enumerate(begun))
    return Chart(name, title, caption, Axis("began with", "category", ticks), panels)


def continued_by_budget(
    scores: Scores, datasets: Sequence[DatasetInfo] | None = None
) -> Chart | Skipped:
    """Follow starting models through continued pretraining (the paper's Figure 9).

    Args:
        scores: A table.
        datasets: What gets a panel; by default a category's average, or its only dataset.
    """
    name, title = "continued-steps", "Continued pretraining by its length"
    ways = {key: found for key, found in _ways(scores).items() if len(_lengths(found)) > 1}
    if not ways:
        reason = "needs a model that was trained on for two different numbers of steps"
        return Skipped(name, title, reason)
    labels, styles = _start_labels([*ways], scores), _start_styles([*ways])
    lines = [
        (
            f"began with {labels[key]}",
            styles[key],
            [(float(model.continued_steps), model) for model in found],
        )
        for key, found in ways.items()
    ]
    panels = score_panels(scores, lines, datasets or shown_datasets(scores))
    if not panels:
        return Skipped(name, title, "none of its models has a score")
    places = [x for _, _, found in lines for x, _ in found]
    caption = (
        f"{title}; 0 is the finished model that it began with. Each length has its own decay. "
        f"{shared_places_note(lines)}"
        f"{interval_note(scores)}"
    )
    axis = Axis("steps of continued training", "linear", ticks_at(places, steps_text))
    return Chart(name, title, caption, axis, panels)


def _ways(scores: Scores) -> dict[Begun, list[ModelInfo]]:
    """Return the models of each starting point, the starting model first."""
    continued = [model for model in scores.models if model.continued_steps and model.is_final]
    ways = grouped(continued, lambda model: (model.size, model.start or ""))
    order = sizes(model for model in scores.models)
    ways = dict(sorted(ways.items(), key=lambda way: order.index(way[0][0])))
    return {key: [*_starting_models(found, scores), *found] for key, found in ways.items()}


def _starting_models(found: Sequence[ModelInfo], scores: Scores) -> list[ModelInfo]:
    """Return the finished model that continued ones began with, where the table has it."""
    example = found[0]
    steps = example.total_steps - example.continued_steps
    for model in scores.models:
        if model.continued_steps or not model.is_final or model.size != example.size:
            continue
        if model.start == example.start and model.start is not None:
            return [model]
        is_like = model.objective == example.start and model.total_steps == steps
        masks_alike = example.objective != "MLM" or model.mask_rate == example.mask_rate
        if model.name == example.start or (is_like and masks_alike):
            return [model]
    return []


def _lengths(found: Sequence[ModelInfo]) -> set[int]:
    return {model.continued_steps for model in found if model.continued_steps}


def _longest_shared(ways: Mapping[Begun, Sequence[ModelInfo]]) -> int | None:
    lengths = [length for found in ways.values() for length in _lengths(found)]
    shared = {length for length in lengths if lengths.count(length) > 1}
    return max(shared, default=None)


def _start_labels(begun: Sequence[Begun], scores: Scores) -> dict[Begun, str]:
    has_sizes = len({size for size, _ in begun}) > 1
    names = {model.name: model.label for model in scores.models}
    return {
        (size, start): f"{size} {names.get(start, start)}" if has_sizes else names.get(start, start)
        for size, start in begun
    }


def _start_styles(begun: Sequence[Begun]) -> dict[Begun, SeriesStyle]:
    known = objective_styles(())
    if len({size for size, _ in begun}) == 1 and all(start in known for _, start in begun):
        return {key: known[key[1]] for key in begun}
    return distinct_styles(begun)


def continued_losses(records: StudyRecords) -> Chart | Skipped:
    """Draw losses from the first step after a finished model on (the paper's Figure 12).

    Training losses are means over neighbouring steps, since single batches are noisy; held-out
    losses are as they were measured.

    Args:
        records: A study's.
    """
    name, title = LOSS_FIGURE, LOSS_TITLE
    arms = [arm for arm in records.arms if arm.record.continued_steps and arm.record.is_final]
    if not arms:
        return Skipped(name, title, "no model was trained on after its end")
    styles = distinct_styles([arm.name for arm in arms])
    panels = []
    for kind, curves_of in (("Training", _training), ("Held-out", _heldout)):
        objectives = sorted({objective for arm in arms for objective in curves_of(arm)})
        for objective in objectives:
            series = tuple(
                found
                for arm in arms
                if (found := _loss_series(arm, curves_of(arm).get(objective), styles[arm.name],
                                          is_smooth=kind == "Training")) is not None
            )  # fmt: skip
            if series:
                heading = f"{kind} loss, {objective_name(objective)}"
                panels.append(Panel(f"{kind}-{objective}", heading, "nats per token", series))
    if not panels:
        return Skipped(name, title, "no losses were logged in continued training")
    caption = (
        f"{title}, counted from the finished model that it began with. Training losses are means "
        "over neighbouring steps."
    )
    end = max(point.x for panel in panels for each in panel.series for point in each.points)
    ticks = ticks_at((0.0, end / 2, end), steps_text)
    axis = Axis("steps of continued training", "linear", ticks)
    return Chart(name, title, caption, axis, tuple(panels))


def _training(arm: ArmData) -> Mapping[str, Curve]:
    first = arm.record.steps - arm.record.continued_steps
    return {
        objective: curve
        for objective, curve in arm.training.items()
        if bool((curve.steps > first).any())
    }


def _heldout(arm: ArmData) -> Mapping[str, Curve]:
    return {name: curve for name, curve in arm.heldout.items() if name in _training(arm)}


def _loss_series(
    arm: ArmData, curve: Curve | None, style: SeriesStyle, *, is_smooth: bool
) -> Series | None:
    """Return one arm's losses since its finished model, thinned to what print can show."""
    if curve is None:
        return None
    first = arm.record.steps - arm.record.continued_steps
    chosen = curve.steps > first if is_smooth else curve.steps >= first
    steps, losses = curve.steps[chosen] - first, curve.losses[chosen]
    if len(steps) == 0:
        return None
    parts = min(len(steps), _MAX_POINTS) if is_smooth else len(steps)
    points = tuple(
        Point(float(some_steps.mean()), float(some_losses.mean()), model=arm.name)
        for some_steps, some_losses in zip(
            np.array_split(steps, parts), np.array_split(losses, parts), strict=True
        )
    )
    return Series(flat(arm.label), style, points, has_markers=not is_smooth and len(points) <= 24)
