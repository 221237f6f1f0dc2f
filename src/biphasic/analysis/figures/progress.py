"""Figures of scores by training step, FLOPs and tokens predicted, and in continued training."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from biphasic.amounts import amount, percent, round_ticks, superscript
from biphasic.analysis.figures.chart import Axis, Chart, Panel, Point, Series, Skipped, ticks_at
from biphasic.analysis.figures.choose import (
    Drawing,
    Line,
    at_rate,
    category_axis,
    finished,
    interval_note,
    masking_note,
    placed,
    places_of,
    recipe_lines,
    reference_rate,
    score_figure,
    sizes,
    steps_text,
)
from biphasic.analysis.scores.table import DatasetInfo, ModelInfo, Scores, grouped
from biphasic.analysis.text import metric_name
from biphasic.palette import distinct_styles, hollow, objective_styles, ordered_styles

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
    has_optimizers = len({optimizer for *_, optimizer in paths}) > 1
    labels = {}
    for path in paths:
        size, objective, rate, first_steps, optimizer = path
        parts = [size] if has_sizes and size else []
        parts.append(objective)
        if has_rates and rate is not None:
            parts.append(percent(rate))
        label = " ".join(parts)
        label += f" after {first_steps:,} of CLM" if first_steps else ""
        labels[path] = f"{label}, {optimizer}" if has_optimizers else label
    return labels


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
    steps = example.total_steps - example.continued_steps
    for model in scores.models:
        if model.continued_steps or not model.is_final or model.size != example.size:
            continue
        if model.attention != example.attention:
            continue
        if model.start == example.start and model.start is not None:
            return [model]
        is_like = model.objective == _begun(example)[1] and model.total_steps == steps
        masks_alike = example.objective != "MLM" or model.mask_rate == example.mask_rate
        is_like = is_like and masks_alike and model.optimizer == example.optimizer
        if model.name == example.start or is_like:
            return [model]
    return []


def _lengths(models: Sequence[ModelInfo]) -> set[int]:
    return {model.continued_steps for model in models if model.continued_steps}


def _start_labels(begun: Sequence[Begun], scores: Scores) -> dict[Begun, str]:
    has_sizes, has_optimizers = (len({key[place] for key in begun}) > 1 for place in (0, 2))
    labels = {}
    for size, start, optimizer in begun:
        name = scores.labels.get(start, start)
        label = f"{size} {name}" if has_sizes else name
        labels[size, start, optimizer] = f"{label}, {optimizer}" if has_optimizers else label
    return labels


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
            if (points := tuple(_points(scores, model, datasets)))
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


def _points(scores: Scores, model: ModelInfo, datasets: Sequence[DatasetInfo]) -> Iterator[Point]:
    for dataset in datasets:
        if (estimate := scores.get(model.name, dataset.name).estimate) is not None:
            name = scores.written_names[model.name]
            yield Point(dataset.num_train, estimate.mean, *estimate.ends, name)
