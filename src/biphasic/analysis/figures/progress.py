"""Figures of scores by training step, by training FLOPs, and in continued training.

Each function takes a table and the datasets with a panel. Figure numbers are the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from biphasic.amounts import superscript
from biphasic.analysis.figures.chart import Axis, Chart, Skipped, ticks_at
from biphasic.analysis.figures.choose import (
    Datasets,
    Lines,
    at_rate,
    finished,
    grouped,
    masking_note,
    recipe,
    recipe_looks,
    reference_rate,
    score_chart,
    sizes,
    steps_text,
)
from biphasic.analysis.scores.table import ModelInfo, Scores
from biphasic.palette import (
    LINES,
    SeriesStyle,
    distinct_styles,
    hollow,
    objective_styles,
    ordered_styles,
)

_WIDE = 8
"""Axes with a larger ratio of values are logarithmic."""
Path = tuple[str, str, float | None, int]
Begun = tuple[str, str]
"""Size and starting model of continued training."""


def scores_by_step(scores: Scores, datasets: Datasets = None) -> Chart | Skipped:
    """Draw scores during pretraining (Figure 4).

    Intermediate states precede the decay of the learning rate. The finished model has an outlined
    marker that is not connected.
    """
    name, title = "step", "Scores by pretraining step"
    lines, note = _courses(scores, lambda model: float(model.total_steps))
    if not lines:
        return Skipped(name, title, "needs a model scored at two intermediate steps or more")
    places = _places(lines)
    is_log = min(places) > 0 and max(places) > _WIDE * min(places)
    axis = Axis("pretraining step", "log" if is_log else "linear", ticks_at(places, steps_text))
    return score_chart(name, title, scores, lines, datasets, axis=axis, caption=f"{title}. {note}")


def _courses(scores: Scores, place: Callable[[ModelInfo], float]) -> tuple[Lines, str]:
    """Return a line for each model with several intermediate states, and a note on them."""
    intermediate = (m for m in scores.models if not m.is_final and m.objective != "none")
    paths = {
        path: _distinct(models)
        for path, models in grouped(intermediate, _path).items()
        if len({model.total_steps for model in models}) > 1
    }
    labels, styles = _path_labels([*paths]), _path_styles([*paths])
    lines = [
        (labels[path], styles[path], [(place(model), model) for model in models])
        for path, models in paths.items()
    ]
    ends = [
        (f"{labels[path]}, finished", hollow(styles[path]), [(place(end), end)])
        for path, models in paths.items()
        if (end := _end_of(path, models, scores)) is not None
    ]
    outlined = "; outlined: finished models" if ends else ""
    note = f"Intermediate states are scored before the learning rate decays{outlined}. "
    return [*lines, *ends], note


def _places(lines: Lines) -> list[float]:
    return [x for _, _, models in lines for x, _ in models]


def _path(model: ModelInfo) -> Path:
    """Return the settings that distinguish one training path from another."""
    first_steps = model.clm_steps if model.clm_steps and model.mlm_steps else 0
    return model.size, model.objective, model.mask_rate, first_steps


def _distinct(models: Iterable[ModelInfo]) -> list[ModelInfo]:
    """Return models without repeated states, keeping the first of each."""
    return [*{model.identity or model.name: model for model in reversed([*models])}.values()][::-1]


def _end_of(path: Path, models: Sequence[ModelInfo], scores: Scores) -> ModelInfo | None:
    """Return the finished model of a path: the first one after its last intermediate state."""
    last = max(model.total_steps for model in models)
    ends = [m for m in finished(scores) if _path(m) == path and m.total_steps > last]
    return min(ends, key=lambda model: model.total_steps, default=None)


def _path_labels(paths: Sequence[Path]) -> dict[Path, str]:
    """Return labels with the settings that differ between paths."""
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
    """Return the styles of objectives if they distinguish the paths, else distinct styles."""
    by_objective = objective_styles(objective for _, objective, _, _ in paths)
    if len({objective for _, objective, _, _ in paths}) == len(paths):
        return {path: by_objective[path[1]] for path in paths}
    return distinct_styles(paths)


def scores_by_flops(scores: Scores, datasets: Datasets = None) -> Chart | Skipped:
    """Draw scores by training FLOPs (Figure 10): during pretraining, else of finished models."""
    name, title = "flops", "Scores by training FLOPs"
    known = replace(scores, models=tuple(model for model in scores.models if model.flops))
    lines, note = _courses(known, lambda model: model.flops or 0.0)
    if not lines:
        rate = reference_rate(finished(scores))
        models = at_rate(finished(known), rate)
        if len({model.flops for model in models}) < 2:
            reason = "needs the training FLOPs of two models or more"
            return Skipped(name, title, reason)
        lines, order = _cost_lines(models), sizes(models)
        note = f"Sizes: {', '.join(order)}. " if len(order) > 1 else ""
        note += masking_note(rate)
    caption = f"{title}. {note}FLOPs of pretraining, from the ledger of each run. "
    places = _places(lines)
    is_log = max(places) > _WIDE * min(places)
    ticks = _power_ticks(places, is_log=is_log)
    axis = Axis("training FLOPs", "log" if is_log else "linear", ticks)
    return score_chart(name, title, scores, lines, datasets, axis=axis, caption=caption)


def _cost_lines(models: Sequence[ModelInfo]) -> Lines:
    """Return a series per objective, or per objective and size if a size has several budgets."""
    by_size = grouped(models, lambda model: (*recipe(model), model.size))
    order = sizes(models)
    is_split = len(order) > 1 and any(len({m.flops for m in g}) > 1 for g in by_size.values())
    recipes = grouped(models, recipe)
    looks = recipe_looks(recipes)
    lines = []
    for key, of_recipe in recipes.items():
        label, style = looks[key]
        for index, size in enumerate(order if is_split else [""]):
            members = [model for model in of_recipe if not is_split or model.size == size]
            look = replace(style, line=LINES[index % len(LINES)]) if is_split else style
            name = f"{label}, {size}" if is_split else label
            lines.append((name, look, [(model.flops or 0.0, model) for model in members]))
    return lines


def _power_ticks(places: Sequence[float], *, is_log: bool) -> tuple[tuple[float, str], ...]:
    """Return ticks at 1, 2 and 5 times the powers of ten within a range, else at its ends."""
    low, high = min(places), max(places)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1) if is_log else ()
    round_ones = (factor * 10.0**power for power in powers for factor in (1, 2, 5))
    inside = [tick for tick in round_ones if low / 1.05 <= tick <= high * 1.05]
    return ticks_at(inside or (low, high), _power_text)


def _power_text(number: float) -> str:
    mantissa, _, exponent = f"{number:.1e}".partition("e")
    ten = f"10{superscript(int(exponent))}"
    return ten if float(mantissa) == 1 else f"{float(mantissa):g}·{ten}"


def continued_at_one_budget(scores: Scores, datasets: Datasets = None) -> Chart | Skipped:
    """Compare starting models before and after the same number of further steps (Figure 8)."""
    name, title = "continued-budget", "Continued pretraining: before and after"
    ways = _ways(scores)
    lengths = [length for models in ways.values() for length in _lengths(models)]
    shared = max((length for length in lengths if lengths.count(length) > 1), default=None)
    if shared is None:
        reason = "needs two starting models that were continued for the same number of steps"
        return Skipped(name, title, reason if ways else "no finished model was continued")
    begun = [key for key, models in ways.items() if shared in _lengths(models)]
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
    caption = f"{title} {shared:,} more steps, by starting model. "
    ticks = tuple((float(index), labels[key]) for index, key in enumerate(begun))
    axis = Axis("began with", "category", ticks)
    return score_chart(
        name, title, scores, lines, datasets, axis=axis, caption=caption, is_connected=False
    )


def continued_by_budget(scores: Scores, datasets: Datasets = None) -> Chart | Skipped:
    """Draw scores by the length of continued pretraining (Figure 9)."""
    name, title = "continued-steps", "Continued pretraining by its length"
    ways = {key: models for key, models in _ways(scores).items() if len(_lengths(models)) > 1}
    if not ways:
        reason = "needs a model that was continued for two different numbers of steps"
        return Skipped(name, title, reason)
    labels, styles = _start_labels([*ways], scores), _start_styles([*ways])
    lines = [
        (
            f"began with {labels[key]}",
            styles[key],
            [(float(model.continued_steps), model) for model in models],
        )
        for key, models in ways.items()
    ]
    places = [x for _, _, placed in lines for x, _ in placed]
    caption = f"{title}; 0 is the starting model. Each length has its own decay. "
    axis = Axis("steps of continued training", "linear", ticks_at(places, steps_text))
    return score_chart(name, title, scores, lines, datasets, axis=axis, caption=caption)


def _ways(scores: Scores) -> dict[Begun, list[ModelInfo]]:
    """Return the continued models of each starting model, which comes first."""
    continued = [model for model in scores.models if model.continued_steps and model.is_final]
    ways = grouped(continued, lambda model: (model.size, model.start or ""))
    order = sizes(model for model in scores.models)
    ways = dict(sorted(ways.items(), key=lambda way: order.index(way[0][0])))
    return {key: [*_starting_models(models, scores), *models] for key, models in ways.items()}


def _starting_models(models: Sequence[ModelInfo], scores: Scores) -> list[ModelInfo]:
    """Return the starting model of continued ones, if the table has it."""
    example = models[0]
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


def _lengths(models: Sequence[ModelInfo]) -> set[int]:
    return {model.continued_steps for model in models if model.continued_steps}


def _start_labels(begun: Sequence[Begun], scores: Scores) -> dict[Begun, str]:
    has_sizes = len({size for size, _ in begun}) > 1
    names = scores.labels
    return {
        (size, start): f"{size} {names.get(start, start)}" if has_sizes else names.get(start, start)
        for size, start in begun
    }


def _start_styles(begun: Sequence[Begun]) -> dict[Begun, SeriesStyle]:
    known = objective_styles(())
    if len({size for size, _ in begun}) == 1 and all(start in known for _, start in begun):
        return {key: known[key[1]] for key in begun}
    return distinct_styles(begun)
