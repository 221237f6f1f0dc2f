"""Scores as training goes on: by step, by what it cost, and in continued training.

Each function takes a table and the datasets that get a panel. Numbers of figures are the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

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
from biphasic.analysis.figures.palette import (
    LINES,
    SeriesStyle,
    distinct_styles,
    hollow,
    objective_styles,
    ordered_styles,
)
from biphasic.analysis.scores.table import ModelInfo, Scores
from biphasic.analysis.text import superscript

_WIDE = 8
"""Steps that differ by more than this factor are drawn on a logarithmic axis."""
Path = tuple[str, str, float | None, int]
Begun = tuple[str, str]
"""Size, and what continued training began with."""


def scores_by_step(scores: Scores, datasets: Datasets = None) -> Chart | Skipped:
    """Follow models through pretraining (Figure 4).

    States on the way have not gone through the decay of the learning rate; the finished model,
    which has, is an outlined marker that no line reaches.
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
    places = [x for _, _, found in (*lines, *ends) for x, _ in found]
    caption = (
        f"{title}. States on the way are scored as they are, before the learning rate decays"
        f"{'; outlined: finished models' if ends else ''}. "
    )
    is_log = min(places) > 0 and max(places) > _WIDE * min(places)
    axis = Axis("pretraining step", "log" if is_log else "linear", ticks_at(places, steps_text))
    lines += ends
    return score_chart(name, title, scores, lines, datasets, axis=axis, caption=caption)


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


def scores_by_flops(scores: Scores, datasets: Datasets = None) -> Chart | Skipped:
    """Compare finished models by what their pretraining cost (Figure 10)."""
    name, title = "flops", "Scores by training FLOPs"
    trained = finished(scores)
    rate = reference_rate(trained)
    models = [model for model in at_rate(trained, rate) if model.flops]
    if len({model.flops for model in models}) < 2:
        reason = "needs the training FLOPs of two finished models or more"
        return Skipped(name, title, reason)
    lines = _cost_lines(models)
    order = sizes(models)
    which = f"Sizes: {', '.join(order)}. " if len(order) > 1 else ""
    caption = (
        f"{title}. {which}"
        f"{masking_note(rate)}FLOPs of pretraining alone, as the ledger of each run counts them. "
    )
    places = [x for _, _, found in lines for x, _ in found]
    is_log = max(places) > _WIDE * min(places)
    ticks = _power_ticks(places, is_log=is_log)
    axis = Axis("training FLOPs", "log" if is_log else "linear", ticks)
    return score_chart(name, title, scores, lines, datasets, axis=axis, caption=caption)


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
    """Compare starting models before and after equally much more MLM (Figure 8)."""
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
    caption = f"{title} {shared:,} more steps, by what they began with. "
    ticks = tuple((float(index), labels[key]) for index, key in enumerate(begun))
    axis = Axis("began with", "category", ticks)
    return score_chart(
        name, title, scores, lines, datasets, axis=axis, caption=caption, is_connected=False
    )


def continued_by_budget(scores: Scores, datasets: Datasets = None) -> Chart | Skipped:
    """Follow starting models through continued pretraining (Figure 9)."""
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
    places = [x for _, _, found in lines for x, _ in found]
    caption = (
        f"{title}; 0 is the finished model that it began with. Each length has its own decay. "
    )
    axis = Axis("steps of continued training", "linear", ticks_at(places, steps_text))
    return score_chart(name, title, scores, lines, datasets, axis=axis, caption=caption)


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
