"""Scores by model size: of the objectives, and of the masking rates."""

from __future__ import annotations

from collections.abc import Sequence

from biphasic.analysis.palette import ordered_styles
from biphasic.analysis.plots.chart import (
    Axis,
    Chart,
    Lines,
    Skipped,
    score_panels,
    shown_datasets,
    ticks_at,
)
from biphasic.analysis.plots.choose import (
    at_rate,
    commonest_budget,
    finished,
    grouped,
    masking_note,
    percent,
    recipe,
    recipe_looks,
    reference_rate,
    shared_places_note,
    sizes,
)
from biphasic.analysis.plots.notes import interval_note
from biphasic.analysis.score_table import DatasetInfo, ModelInfo, Scores


def scores_by_size(
    scores: Scores, datasets: Sequence[DatasetInfo] | None = None
) -> Chart | Skipped:
    """Compare objectives over model sizes, trained for equally many steps (the paper's Figure 2).

    Args:
        scores: A table.
        datasets: What gets a panel; by default a category's average, or its only dataset.
    """
    name, title = "size", "Scores by model size and objective"
    models = [model for model in finished(scores) if model.size]
    if len(sizes(models)) < 2:
        return Skipped(name, title, "needs two model sizes or more")
    rate = reference_rate(models)
    alike = _at_several_sizes(at_rate(models, rate))
    budget = commonest_budget(alike)
    if budget is None:
        return Skipped(
            name, title, "needs an objective trained at two sizes for equally many steps"
        )
    chosen = [model for model in alike if model.total_steps == budget]
    order = sizes(chosen)
    lines = _recipe_lines(chosen, order)
    panels = score_panels(scores, lines, datasets or shown_datasets(scores))
    if not panels:
        return Skipped(name, title, "none of its models has a score")
    caption = (
        f"{title}, after {budget:,} steps. {masking_note(rate)}"
        f"{shared_places_note(lines)}"
        f"{interval_note(scores)}"
    )
    axis = Axis("model size", "category", tuple((float(i), size) for i, size in enumerate(order)))
    return Chart(name, title, caption, axis, panels)


def _at_several_sizes(models: Sequence[ModelInfo]) -> list[ModelInfo]:
    groups = grouped(models, lambda model: (recipe(model), model.total_steps))
    return [m for group in groups.values() if len(sizes(group)) > 1 for m in group]


def _recipe_lines(models: Sequence[ModelInfo], order: Sequence[str]) -> Lines:
    recipes = grouped(models, recipe)
    looks = recipe_looks(recipes)
    return [
        (*looks[key], [(float(order.index(model.size)), model) for model in found])
        for key, found in recipes.items()
    ]


def scores_by_mask_rate(
    scores: Scores, datasets: Sequence[DatasetInfo] | None = None
) -> Chart | Skipped:
    """Compare masking rates of MLM at each model size (the paper's Figure 3).

    Args:
        scores: A table.
        datasets: What gets a panel; by default a category's average, or its only dataset.
    """
    name, title = "mask-rate", "MLM by masking rate and model size"
    models = [
        model
        for model in finished(scores)
        if model.objective == "MLM" and model.mask_rate is not None
    ]
    groups = grouped(models, lambda model: (model.size, model.total_steps))
    varied = [
        model
        for group in groups.values()
        if len({member.mask_rate for member in group}) > 1
        for model in group
    ]
    budget = commonest_budget(varied)
    if budget is None:
        return Skipped(name, title, "needs MLM of one size and length at two masking rates or more")
    chosen = [model for model in varied if model.total_steps == budget]
    styles = ordered_styles(sizes(chosen))
    by_size = grouped(chosen, lambda model: model.size)
    lines: Lines = [
        (size or "MLM", style, [(100 * (model.mask_rate or 0.0), model) for model in by_size[size]])
        for size, style in styles.items()
    ]
    panels = score_panels(scores, lines, datasets or shown_datasets(scores))
    if not panels:
        return Skipped(name, title, "none of its models has a score")
    caption = f"{title}, after {budget:,} steps. {shared_places_note(lines)}{interval_note(scores)}"
    places = [x for _, _, found in lines for x, _ in found]
    ticks = ticks_at(places, lambda place: percent(place / 100))
    return Chart(name, title, caption, Axis("tokens masked", "linear", ticks), panels)
