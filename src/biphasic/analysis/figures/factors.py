"""Figures of scores by what models differ in, during pretraining, and in continued training."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from biphasic.amounts import amount, percent, round_ticks, superscript
from biphasic.analysis.figures.chart import (
    Axis,
    Chart,
    Drawing,
    Line,
    Panel,
    Series,
    Skipped,
    at_rate,
    category_axis,
    clm_share,
    finished,
    interval_note,
    masking_note,
    placed,
    places_of,
    points_of,
    recipe,
    recipe_lines,
    reference_rate,
    score_figure,
    sizes,
    steps_text,
    ticks_at,
)
from biphasic.analysis.scores.table import DatasetInfo, ModelInfo, Scores, grouped
from biphasic.analysis.text import metric_name
from biphasic.palette import distinct_styles, hollow, objective_styles, ordered_styles

_MIXED = "CLM+MLM"
_QUARTERS = (0.0, 25.0, 50.0, 75.0, 100.0)


@score_figure(2, "size", "Scores by model size and objective")
def scores_by_size(scores: Scores) -> Drawing | str:
    """Compare objectives over model sizes, with equal training steps."""
    models = [model for model in finished(scores) if model.size]
    if len(sizes(models)) < 2:
        return "needs two model sizes or more"
    rate = reference_rate(models)
    chosen, budget = _varied(
        at_rate(models, rate), by=lambda m: (recipe(m), m.optimizer), factor=attrgetter("size")
    )
    if not chosen:
        return "needs an objective at two model sizes with equal training steps"
    order = sizes(chosen)
    lines = recipe_lines(chosen, lambda model: float(order.index(model.size)))
    note = f", after {budget:,} steps. {masking_note(rate)}"
    return Drawing(lines, category_axis("model size", order), note)


@score_figure(3, "mask-rate", "MLM by masking rate and model size")
def scores_by_mask_rate(scores: Scores) -> Drawing | str:
    """Compare masking rates of MLM at each model size."""
    models = [m for m in finished(scores) if m.objective == "MLM" and m.mask_rate is not None]
    way = attrgetter("size", "optimizer")
    chosen, budget = _varied(models, by=way, factor=attrgetter("mask_rate"))
    if not chosen:
        return "needs MLM at two masking rates, with one size and budget"
    by_way, order = grouped(chosen, way), sizes(chosen)
    keys = sorted(by_way, key=lambda key: order.index(key[0]))
    labels = {key: key[0] or "MLM" for key in keys}
    lines = _ordered_lines(by_way, labels, _masked)
    return Drawing(lines, _mask_axis(lines), f", after {budget:,} steps. ")


def _ordered_lines(
    groups: Mapping[Any, Sequence[ModelInfo]],
    labels: Mapping[Any, str],
    x: Callable[[ModelInfo], float],
) -> list[Line]:
    """Return a line for each group, from light to dark in the order of their labels."""
    styles = ordered_styles([*labels])
    return [
        (label, styles[key], placed(groups[key], x))
        for key, label in _with_optimizers(labels).items()
    ]


def _with_optimizers(labels: Mapping[Any, str]) -> dict[Any, str]:
    """Add optimizers, which end the keys, to labels if there are several."""
    several = len({key[-1] for key in labels}) > 1
    return {key: f"{label}, {key[-1]}" if several else label for key, label in labels.items()}


def _varied(
    models: Iterable[ModelInfo],
    *,
    by: Callable[[ModelInfo], object],
    factor: Callable[[ModelInfo], object],
) -> tuple[list[ModelInfo], int]:
    """Return the models of the most common budget that differ in a factor, and the budget."""
    # Only models that agree in `by` and in their number of steps are compared.
    groups = grouped(models, lambda model: (by(model), model.total_steps))
    varied = [m for group in groups.values() if len(set(map(factor, group))) > 1 for m in group]
    counts = Counter(model.total_steps for model in varied)
    budget = max(counts, key=lambda steps: (counts[steps], steps), default=0)
    return [model for model in varied if model.total_steps == budget], budget


def sizes_with_shares(scores: Scores) -> list[str]:
    """Return the sizes that `scores_by_clm_share` can draw."""
    return [size for size in sizes(finished(scores)) if _by_budget(scores, size)]


@score_figure(6, "clm-share", "Scores by share of CLM and budget")
def scores_by_clm_share(scores: Scores, *, size: str | None = None) -> Drawing | str:
    """Compare shares of CLM at equal budgets, by default at the least size."""
    # Each budget and each optimizer has a line.
    known = sizes_with_shares(scores)
    size = size if size is not None else next(iter(known), None)
    if size is None or size not in known:
        return "needs CLM then MLM and another share of CLM, at one size, budget and masking rate"
    by_budget = _by_budget(scores, size)
    labels = {key: f"{key[0]:,} steps" for key in sorted(by_budget)}
    lines = _ordered_lines(by_budget, labels, clm_share)
    rate = reference_rate(model for members in by_budget.values() for model in members)
    note = (
        f"{_after(size)}. From only MLM (left) to only CLM (right); MLM follows CLM. "
        f"{masking_note(rate)}"
    )
    axis = Axis("share of CLM in the steps", "linear", ticks_at(_QUARTERS, lambda x: f"{x:g} %"))
    return Drawing(lines, axis, note, of=f": {size}" if size else "")


def _by_budget(scores: Scores, size: str) -> dict[tuple[int, str], list[ModelInfo]]:
    """Return the models of each budget and optimizer with CLM then MLM and another share."""
    models = [
        model
        for model in finished(scores)
        if model.size == size and model.objective in ("MLM", "CLM", _MIXED)
    ]
    rate = reference_rate(model for model in models if model.objective == _MIXED)
    groups = grouped(at_rate(models, rate), lambda model: (model.total_steps, model.optimizer))
    return {
        key: members
        for key, members in groups.items()
        if any(model.objective == _MIXED for model in members)
        and len({round(clm_share(model), 3) for model in members}) > 1
    }


@score_figure(7, "mask-rate-sensitivity", "Masking rate: MLM against CLM then MLM")
def mask_rate_sensitivity(scores: Scores) -> Drawing | str:
    """Compare the sensitivity of MLM and of CLM then MLM to the masking rate."""
    models = [model for model in finished(scores) if model.mask_rate is not None]
    pairs = []
    groups = grouped(models, attrgetter("size", "total_steps", "optimizer"))
    for (size, budget, optimizer), group in groups.items():
        alone = [model for model in group if model.objective == "MLM"]
        mixed = grouped((m for m in group if m.objective == _MIXED), lambda model: model.clm_steps)
        for clm_steps, after in mixed.items():
            common = {model.mask_rate for model in alone} & {model.mask_rate for model in after}
            if len(common) > 1:
                pairs.append((len(common), budget, clm_steps, size, optimizer, alone, after))
    if not pairs:
        return "needs MLM and CLM then MLM of one size and budget, both at two masking rates"
    _, budget, clm_steps, size, optimizer, alone, after = max(pairs, key=lambda pair: pair[:3])
    styles = objective_styles(())
    name = f"CLM {steps_text(clm_steps)}, then MLM {steps_text(budget - clm_steps)}"
    lines = [
        ("MLM", styles["MLM"], placed(alone, _masked)),
        (name, styles[_MIXED], placed(after, _masked)),
    ]
    by = f", by {optimizer}" if len({model.optimizer for model in models}) > 1 else ""
    return Drawing(lines, _mask_axis(lines), f"{_after(size)}, {budget:,} steps in all{by}. ")


def _after(size: str) -> str:
    return f", {size}" if size else ""


def _masked(model: ModelInfo) -> float:
    """Return the masking rate in percent."""
    return 100 * (model.mask_rate or 0.0)


def _mask_axis(lines: Iterable[Line]) -> Axis:
    ticks = ticks_at(places_of(lines), lambda place: percent(place / 100))
    return Axis("tokens masked", "linear", ticks)


_WIDE = 8  # axes with a larger ratio of values are logarithmic
Path = tuple[str, str, float | None, int, str]
Begun = tuple[str, str, str]  # size, starting model and optimizer of continued training


@score_figure(4, "step", "Scores by pretraining step")
def scores_by_step(scores: Scores) -> Drawing | str:
    """Draw scores during pretraining, and the finished model with an outlined marker."""
    lines, note = _courses(scores, lambda model: float(model.total_steps))
    if not lines:
        return "needs a model scored at two intermediate steps or more"
    places = places_of(lines)
    is_log = min(places) > 0 and max(places) > _WIDE * min(places)
    axis = Axis("pretraining step", "log" if is_log else "linear", ticks_at(places, steps_text))
    return Drawing(lines, axis, f". {note}")


def _courses(scores: Scores, place: Callable[[ModelInfo], float]) -> tuple[list[Line], str]:
    """Return a line for each model with several intermediate states, and a note on them."""
    intermediate = (m for m in scores.models if not m.is_final and m.objective != "none")
    paths: dict[Path, list[ModelInfo]] = {}
    for path, models in grouped(intermediate, _path).items():
        if len({model.total_steps for model in models}) > 1:
            # Of a state under several names, the first.
            first = {model.identity or model.name: model for model in reversed(models)}
            paths[path] = [*first.values()][::-1]
    labels, styles = _path_labels([*paths]), distinct_styles([*paths])
    objectives = {objective for _, objective, *_ in paths}
    if len(objectives) == len(paths):
        by_objective = objective_styles(objectives)
        styles = {path: by_objective[path[1]] for path in paths}
    lines = [(labels[path], styles[path], placed(models, place)) for path, models in paths.items()]
    ends = []
    for path, models in paths.items():
        last = max(model.total_steps for model in models)
        after = [m for m in finished(scores) if _path(m) == path and m.total_steps > last]
        if end := min(after, key=lambda model: model.total_steps, default=None):
            ends.append((f"{labels[path]}, finished", hollow(styles[path]), placed([end], place)))
    outlined = "; outlined: finished models" if ends else ""
    note = f"Intermediate states are scored before the learning rate decays{outlined}. "
    return [*lines, *ends], note


def _path(model: ModelInfo) -> Path:
    """Return the settings that distinguish one training path from another."""
    first_steps = model.clm_steps if model.clm_steps and model.mlm_steps else 0
    return model.size, model.objective, model.mask_rate, first_steps, model.optimizer


def _path_labels(paths: Sequence[Path]) -> dict[Path, str]:
    """Return labels with the settings that differ between paths."""
    has_sizes = len({size for size, *_ in paths}) > 1
    has_rates = len({rate for _, _, rate, *_ in paths if rate is not None}) > 1
    labels = {}
    for path in paths:
        size, objective, rate, first_steps, _ = path
        parts = [size] if has_sizes and size else []
        parts.append(objective)
        if has_rates and rate is not None:
            parts.append(percent(rate))
        parts += [f"after {first_steps:,} of CLM"] if first_steps else []
        labels[path] = " ".join(parts)
    return _with_optimizers(labels)


@score_figure(10, "flops", "Scores by training FLOPs")
def scores_by_flops(scores: Scores) -> Drawing | str:
    """Draw scores by training FLOPs: during pretraining, else of finished models."""
    known = replace(scores, models=tuple(model for model in scores.models if model.flops))
    lines, note = _courses(known, _flops)
    if not lines:
        rate = reference_rate(finished(scores))
        models = at_rate(finished(known), rate)
        if len({model.flops for model in models}) < 2:
            return "needs two models trained from scratch whose FLOPs are known and differ"
        lines, order = recipe_lines(models, _flops), sizes(models)
        note = f"Sizes: {', '.join(order)}. " if len(order) > 1 else ""
        note += masking_note(rate)
    low, high = min(places_of(lines)), max(places_of(lines))
    is_log = high > _WIDE * low
    # Ticks at 1, 2 and 5 times the powers of ten within the range, else at its ends.
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1) if is_log else ()
    round_ones = (factor * 10.0**power for power in powers for factor in (1, 2, 5))
    inside = [tick for tick in round_ones if low / 1.05 <= tick <= high * 1.05]
    ticks = ticks_at(inside or (low, high), _power_text)
    axis = Axis("training FLOPs", "log" if is_log else "linear", ticks)
    return Drawing(lines, axis, f". {note}FLOPs of pretraining, from the ledger of each run. ")


def _flops(model: ModelInfo) -> float:
    return model.flops or 0.0


@score_figure(None, "labels", "Scores by tokens predicted")
def scores_by_labels(scores: Scores) -> Drawing | str:
    """Draw scores of finished and continued models by the tokens that they predicted."""
    models = [model for model in scores.distinct if model.is_final and model.labels]
    if len({model.labels for model in models}) < 2:
        return "needs models that predicted different numbers of tokens"
    lines = recipe_lines(models, lambda model: float(model.labels or 0))
    places = places_of(lines)
    ticks = ticks_at(round_ticks(min(places), max(places), most=4), amount)
    note = (
        ": CLM predicts each token that it reads, MLM the masked ones. Continued models have those "
        "of both trainings. "
    )
    return Drawing(lines, Axis("tokens predicted", "linear", ticks), note)


def _power_text(number: float) -> str:
    mantissa, _, exponent = f"{number:.1e}".partition("e")
    ten = f"10{superscript(int(exponent))}"
    return ten if float(mantissa) == 1 else f"{float(mantissa):g}·{ten}"


@score_figure(8, "continued-budget", "Continued pretraining: before and after")
def continued_at_one_budget(scores: Scores) -> Drawing | str:
    """Compare starting models before and after the same number of further steps."""
    ways = _ways(scores)
    lengths = [length for models in ways.values() for length in _lengths(models)]
    shared = max((length for length in lengths if lengths.count(length) > 1), default=None)
    if shared is None:
        lack = "needs two starting models that were continued for the same number of steps"
        return lack if ways else "no finished model was continued"
    begun = [key for key, models in ways.items() if shared in _lengths(models)]
    labels = _start_labels(begun, scores)
    after = ordered_styles(["before", "after"])["after"]
    places = [(float(index), model) for index, key in enumerate(begun) for model in ways[key]]
    lines = [
        (name, style, [(x, model) for x, model in places if model.continued_steps == steps])
        for name, style, steps in (
            ("before", hollow(after), 0), (f"after {shared:,} more steps", after, shared),
        )
    ]  # fmt: skip
    axis = category_axis("began with", (labels[key] for key in begun))
    note = f" {shared:,} more steps, by starting model. "
    return Drawing(lines, axis, note, is_connected=False)


@score_figure(9, "continued-steps", "Continued pretraining by its length")
def continued_by_budget(scores: Scores) -> Drawing | str:
    """Draw scores by the length of continued pretraining."""
    ways = {key: models for key, models in _ways(scores).items() if len(_lengths(models)) > 1}
    if not ways:
        return "needs a model that was continued for two different numbers of steps"
    labels, known = _start_labels([*ways], scores), objective_styles(())
    styles = distinct_styles([*ways])
    starts = {start for _, start, _ in ways}
    if len(starts) == len(ways) and starts <= known.keys():
        styles = {key: known[key[1]] for key in ways}
    lines = [
        (
            f"began with {labels[key]}",
            styles[key],
            placed(models, lambda model: float(model.continued_steps)),
        )
        for key, models in ways.items()
    ]
    ticks = ticks_at(places_of(lines), steps_text)
    axis = Axis("steps of continued training", "linear", ticks)
    return Drawing(lines, axis, "; 0 is the starting model. Each length has its own decay. ")


def _ways(scores: Scores) -> dict[Begun, list[ModelInfo]]:
    """Return the continued models of each starting model, which comes first."""
    continued = [model for model in scores.models if model.continued_steps and model.is_final]
    ways = grouped(continued, _begun)
    order = sizes(scores.models)
    ways = dict(sorted(ways.items(), key=lambda way: order.index(way[0][0])))
    return {key: [*_starting_models(models[0], scores), *models] for key, models in ways.items()}


def _begun(model: ModelInfo) -> Begun:
    """Return how a continued model began, and how it attends if its arm says so."""
    return model.size, ", ".join(filter(None, (model.start, model.attention))), model.optimizer


def _starting_models(example: ModelInfo, scores: Scores) -> Iterable[ModelInfo]:
    """Return the model that a continued one started from, if the table has it."""
    masks = example.mask_rate if example.objective == "MLM" else None
    like = (_begun(example)[1], example.total_steps - example.continued_steps, example.optimizer)
    for model in scores.models:
        if model.continued_steps or not model.is_final:
            continue
        if (model.size, model.attention) != (example.size, example.attention):
            continue
        is_like = (model.objective, model.total_steps, model.optimizer) == like
        is_like = is_like and masks in {None, model.mask_rate}
        if (example.start and example.start in {model.start, model.name}) or is_like:
            return [model]
    return []


def _lengths(models: Sequence[ModelInfo]) -> set[int]:
    return {model.continued_steps for model in models if model.continued_steps}


def _start_labels(begun: Sequence[Begun], scores: Scores) -> dict[Begun, str]:
    has_sizes = len({size for size, *_ in begun}) > 1
    names = {key: scores.labels.get(key[1], key[1]) for key in begun}
    return _with_optimizers(
        {key: f"{key[0]} {name}" if has_sizes else name for key, name in names.items()}
    )


NAME, TITLE = "train-examples", "Scores by training examples"


def scores_by_train_examples(scores: Scores) -> Chart | Skipped:
    """Draw scores by the number of training examples that a fine-tuning reads."""
    models = [model for model in scores.models if model.is_final]
    styles = distinct_styles([model.name for model in models])
    panels = []
    for name, datasets in tasks_by_examples(scores).items():
        series = [
            Series(scores.labels[model.name], styles[model.name], points)
            for model in models
            if (points := points_of(scores, [(d.num_train, model, d) for d in datasets]))
        ]
        if series:
            unit = f"test {metric_name(datasets[0].metric)}, %"
            panels.append(Panel(name, name, unit, tuple(series)))
    if not panels:
        reason = "needs scores of a task with two numbers of training examples or more"
        return Skipped(NAME, TITLE, reason)
    places = [point.x for panel in panels for point in panel.points]
    axis = Axis("training examples", "log", ticks_at(places, lambda number: f"{number:,.0f}"))
    note = interval_note(scores)
    caption = f"{TITLE}. A smaller set is part of each larger one of its seed. {note}"
    return Chart(NAME, TITLE, caption, axis, tuple(panels))


def tasks_by_examples(scores: Scores) -> dict[str, list[DatasetInfo]]:
    """Return the datasets of each task that is read with several numbers of training examples."""
    tasks: dict[str, list[DatasetInfo]] = defaultdict(list)
    for dataset in scores.datasets:
        # As the setting `train_examples` of a study's task names them.
        name, _, number = dataset.name.rpartition("-")
        if name and number == str(dataset.num_train):
            tasks[name].append(dataset)
    return {name: datasets for name, datasets in tasks.items() if len(datasets) > 1}
