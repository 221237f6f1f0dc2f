"""Scores as pretraining goes on: by step, and by what it cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from biphasic.analysis.palette import LINES, SeriesStyle, distinct_styles, hollow, objective_styles
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
    finished,
    grouped,
    masking_note,
    recipe,
    recipe_looks,
    reference_rate,
    shared_places_note,
    sizes,
    steps_text,
)
from biphasic.analysis.plots.notes import interval_note
from biphasic.analysis.score_table import DatasetInfo, ModelInfo, Scores
from biphasic.analysis.text import superscript

_WIDE = 8
"""Steps that differ by more than this factor are drawn on a logarithmic axis."""
Path = tuple[str, str, float | None, int]


def scores_by_step(
    scores: Scores, datasets: Sequence[DatasetInfo] | None = None
) -> Chart | Skipped:
    """Follow models through pretraining (the paper's Figure 4).

    States on the way have not gone through the decay of the learning rate; the finished model,
    which has, is an outlined marker that no line reaches.

    Args:
        scores: A table.
        datasets: What gets a panel; by default a category's average, or its only dataset.
    """
    name, title = "step", "Scores by pretraining step"
    on_the_way = {
        path: _each_once(found)
        for path, found in grouped(
            (m for m in scores.models if not m.is_final and m.objective != "none"), _path
        ).items()
    }
    paths = {path: found for path, found in on_the_way.items() if _num_steps(found) > 1}
    if not paths:
        return Skipped(name, title, "needs a model scored at two steps or more on its way")
    labels, styles = _path_labels([*paths]), _path_styles([*paths])
    lines = [
        (labels[path], styles[path], [(float(model.total_steps), model) for model in found])
        for path, found in paths.items()
    ]
    ends = [
        (f"{labels[path]}, finished", hollow(styles[path]), [(float(end.total_steps), end)])
        for path, found in paths.items()
        if (end := _end_of(path, found, scores)) is not None
    ]
    wanted = datasets or shown_datasets(scores)
    on_way = score_panels(scores, lines, wanted)
    at_end = {
        panel.key: panel.series
        for panel in score_panels(scores, ends, wanted, options={"is_connected": False})
    }
    panels = tuple(
        replace(panel, series=panel.series + at_end.get(panel.key, ())) for panel in on_way
    )
    if not panels:
        return Skipped(name, title, "none of its models has a score")
    places = [x for _, _, found in (*lines, *ends) for x, _ in found]
    caption = (
        f"{title}. States on the way are scored as they are, before the learning rate decays"
        f"{'; outlined: finished models' if ends else ''}. "
        f"{shared_places_note(lines)}"
        f"{interval_note(scores)}"
    )
    is_log = min(places) > 0 and max(places) > _WIDE * min(places)
    axis = Axis("pretraining step", "log" if is_log else "linear", ticks_at(places, steps_text))
    return Chart(name, title, caption, axis, panels)


def _path(model: ModelInfo) -> Path:
    """Return what tells one way through training from another."""
    first_steps = model.clm_steps if model.clm_steps and model.mlm_steps else 0
    return model.size, model.objective, model.mask_rate, first_steps


def _each_once(models: Iterable[ModelInfo]) -> list[ModelInfo]:
    """Drop states that several arms share, but for the first."""
    return [*{model.identity or model.name: model for model in reversed([*models])}.values()][::-1]


def _num_steps(models: Iterable[ModelInfo]) -> int:
    return len({model.total_steps for model in models})


def _end_of(path: Path, found: Sequence[ModelInfo], scores: Scores) -> ModelInfo | None:
    """Return the finished model that a way leads to: the nearest one after its last state."""
    last = max(model.total_steps for model in found)
    ends = [m for m in finished(scores) if _path(m) == path and m.total_steps > last]
    return min(ends, key=lambda model: model.total_steps, default=None)


def _path_labels(paths: Sequence[Path]) -> dict[Path, str]:
    """Name ways by what differs between them."""
    has_sizes = len({size for size, *_ in paths}) > 1
    has_rates = len({rate for _, _, rate, _ in paths if rate is not None}) > 1
    labels = {}
    for path in paths:
        size, objective, rate, first_steps = path
        parts = [size] if has_sizes and size else []
        parts.append(objective)
        if has_rates and rate is not None:
            parts.append(f"{100 * rate:g} %")
        label = " ".join(parts)
        labels[path] = f"{label} after {first_steps:,} of CLM" if first_steps else label
    return labels


def _path_styles(paths: Sequence[Path]) -> dict[Path, SeriesStyle]:
    """Give objectives their usual styles where that is enough to tell ways apart."""
    by_objective = objective_styles(objective for _, objective, _, _ in paths)
    if len({objective for _, objective, _, _ in paths}) == len(paths):
        return {path: by_objective[path[1]] for path in paths}
    return distinct_styles(paths)


def scores_by_flops(
    scores: Scores, datasets: Sequence[DatasetInfo] | None = None
) -> Chart | Skipped:
    """Compare finished models by what their pretraining cost (the paper's Figure 10).

    Args:
        scores: A table.
        datasets: What gets a panel; by default a category's average, or its only dataset.
    """
    name, title = "flops", "Scores by training FLOPs"
    trained = finished(scores)
    rate = reference_rate(trained)
    models = [model for model in at_rate(trained, rate) if model.flops]
    if len({model.flops for model in models}) < 2:
        reason = "needs the training FLOPs of two finished models or more"
        return Skipped(name, title, reason)
    lines = _cost_lines(models)
    panels = score_panels(scores, lines, datasets or shown_datasets(scores))
    if not panels:
        return Skipped(name, title, "none of its models has a score")
    order = sizes(models)
    which = f"Sizes: {', '.join(order)}. " if len(order) > 1 else ""
    caption = (
        f"{title}. {which}"
        f"{masking_note(rate)}FLOPs of pretraining alone, as the ledger of each run counts them. "
        f"{interval_note(scores)}"
    )
    places = [x for _, _, found in lines for x, _ in found]
    is_log = max(places) > _WIDE * min(places)
    ticks = _powers(places) if is_log else _multiples(places)
    axis = Axis("training FLOPs", "log" if is_log else "linear", ticks)
    return Chart(name, title, caption, axis, panels)


def _cost_lines(models: Sequence[ModelInfo]) -> Lines:
    """Return a series per objective, or per objective and size where one size has two budgets."""
    by_size = grouped(models, lambda model: (*recipe(model), model.size))
    order = sizes(models)
    is_split = len(order) > 1 and any(len({m.flops for m in g}) > 1 for g in by_size.values())
    recipes = grouped(models, recipe)
    looks = recipe_looks(recipes)
    lines = []
    for key, found in recipes.items():
        label, style = looks[key]
        for index, size in enumerate(order if is_split else [""]):
            members = [model for model in found if not is_split or model.size == size]
            look = replace(style, line=LINES[index % len(LINES)]) if is_split else style
            name = f"{label}, {size}" if is_split else label
            lines.append((name, look, [(model.flops or 0.0, model) for model in members]))
    return lines


def _powers(places: Sequence[float]) -> tuple[tuple[float, str], ...]:
    """Return ticks at 1, 2 and 5 times the powers of ten within a range of places."""
    low, high = math.floor(math.log10(min(places))), math.ceil(math.log10(max(places)))
    steps = (1,) if high - low > 2 else (1, 2, 5)
    candidates = ((factor, power) for power in range(low, high + 1) for factor in steps)
    return tuple(
        (factor * 10.0**power, _power_text(factor, power))
        for factor, power in candidates
        if min(places) / 1.05 <= factor * 10.0**power <= max(places) * 1.05
    ) or _multiples(places)


def _multiples(places: Sequence[float]) -> tuple[tuple[float, str], ...]:
    return tuple(_exact_tick(place) for place in sorted({min(places), max(places)}))


def _exact_tick(place: float) -> tuple[float, str]:
    power = math.floor(math.log10(place))
    return place, _power_text(place / 10.0**power, power)


def _power_text(factor: float, power: int) -> str:
    ten = f"10{superscript(power)}"
    return ten if factor == 1 else f"{factor:.2g}·{ten}"
