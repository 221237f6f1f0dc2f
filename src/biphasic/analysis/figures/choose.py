"""Figures of scores: which models stand in one, what their series are called, and its chart."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from biphasic.analysis.estimate import expected_coverage
from biphasic.analysis.figures.chart import Axis, Chart, Panel, Point, Series, Skipped
from biphasic.analysis.figures.palette import SeriesStyle, distinct_styles, objective_styles
from biphasic.analysis.scores.table import DatasetInfo, ModelInfo, Scores
from biphasic.analysis.text import TASKS, amount, metric_name

Key = TypeVar("Key", bound=Hashable)
Datasets = Sequence[DatasetInfo] | None
"""What gets a panel; None for a category's average, or its only dataset."""
Lines = Sequence[tuple[str, SeriesStyle, Sequence[tuple[float, ModelInfo]]]]
"""For each series its label, its style, and its models with their places."""
Recipe = tuple[str, int]
"""Objective, and the share of its steps that were CLM, in percent."""
_REFERENCE_RATE = 0.4
"""The masking rate that the reference study settles on."""


def finished(scores: Scores) -> tuple[ModelInfo, ...]:
    """Return trained models at the end of their first training, each once."""
    return tuple(
        model
        for model in scores.distinct
        if model.is_final and not model.continued_steps and model.objective != "none"
    )


def grouped(
    models: Iterable[ModelInfo], key: Callable[[ModelInfo], Key]
) -> dict[Key, list[ModelInfo]]:
    """Group models by a key, in their order."""
    groups: dict[Key, list[ModelInfo]] = defaultdict(list)
    for model in models:
        groups[key(model)].append(model)
    return dict(groups)


def sizes(models: Iterable[ModelInfo]) -> list[str]:
    """Return sizes from small to large; those of unknown size keep their order, at the end."""
    parameters: dict[str, float] = {}
    for model in models:
        parameters.setdefault(model.size, model.parameters or float("inf"))
    return sorted(parameters, key=lambda size: parameters[size])


def clm_share(model: ModelInfo) -> float:
    """Return the share of a model's steps that were CLM, in percent."""
    return 100 * model.clm_steps / model.total_steps if model.total_steps else 0.0


def reference_rate(models: Iterable[ModelInfo]) -> float | None:
    """Return the masking rate that comparisons of objectives use.

    The reference study's 40 % where some model has it, else the commonest rate, the highest of
    equals; None where nothing masks.
    """
    rates = Counter(model.mask_rate for model in models if model.mask_rate is not None)
    if _REFERENCE_RATE in rates or not rates:
        return _REFERENCE_RATE if rates else None
    return max(rates, key=lambda rate: (rates[rate], rate))


def at_rate(models: Iterable[ModelInfo], rate: float | None) -> list[ModelInfo]:
    """Return the models that mask at a rate, and those that never mask."""
    return [model for model in models if model.mask_rate in (None, rate)]


def commonest_budget(models: Sequence[ModelInfo]) -> int | None:
    """Return the number of steps that most models share, the longest of equals; None without."""
    budgets = Counter(model.total_steps for model in models)
    return max(budgets, key=lambda steps: (budgets[steps], steps), default=None)


def percent(share: float | None) -> str:
    """Write a masking rate as `40 %`."""
    return "–" if share is None else f"{100 * share:g} %"


def steps_text(steps: float) -> str:
    """Write steps as short as a tick is: `42K`."""
    return amount(steps).replace(" ", "")


def masking_note(rate: float | None) -> str:
    """Say at which masking rate models are compared; empty where nothing masks."""
    return "" if rate is None else f"Models that mask do so at {percent(rate)}. "


def recipe(model: ModelInfo) -> Recipe:
    """Return what a model was trained with, but for its size and length."""
    return model.objective, round(clm_share(model))


def recipe_looks(recipes: Iterable[Recipe]) -> dict[Recipe, tuple[str, SeriesStyle]]:
    """Return label and style of each recipe; mixtures are told apart by their share of CLM."""
    recipes = [*recipes]
    styles = objective_styles(objective for objective, _ in recipes)
    mixed = [found for found in recipes if found[0] == "CLM+MLM"]
    # The first two styles are those of MLM and CLM.
    own = distinct_styles([("MLM", 0), ("CLM", 0), *mixed])
    return {
        found: (f"{found[0]}, {found[1]} % CLM", own[found])
        if found in mixed
        else (found[0], styles[found[0]])
        for found in recipes
    }


def shown_datasets(scores: Scores, *, is_every: bool = False) -> tuple[DatasetInfo, ...]:
    """Return the datasets that get a panel.

    Args:
        scores: A table.
        is_every: Show each dataset; by default a category's average stands for its datasets. An
            average over different metrics stands for nothing, its datasets are shown instead.
    """
    averaged = {
        dataset.task for dataset in scores.averages if dataset.metric != "mixed" and not is_every
    }
    return tuple(
        dataset
        for dataset in scores.datasets
        if (dataset.is_average and dataset.task in averaged)
        or (not dataset.is_average and dataset.task not in averaged)
    )


def _title(dataset: DatasetInfo) -> str:
    """Name a panel: the category for its average, else the dataset."""
    if dataset.is_average:
        return TASKS.get(dataset.task, "").capitalize() or dataset.name
    return dataset.name


def _point(scores: Scores, model: ModelInfo, dataset: DatasetInfo, x: float) -> Point | None:
    """Return one score as a point; None where it is unknown."""
    score = scores.get(model.name, dataset.name)
    if score is None or score.estimate is None:
        return None
    found = score.estimate
    if found.half_width is None:
        return Point(x, found.mean, model=model.name)
    return Point(x, found.mean, found.low, found.high, model.name)


def score_chart(
    name: str,
    title: str,
    scores: Scores,
    lines: Lines,
    datasets: Datasets,
    *,
    axis: Axis,
    caption: str,
    is_connected: bool = True,
) -> Chart | Skipped:
    """Return a figure with a panel per dataset that has at least one of the scores.

    Args:
        name: File name without its ending.
        title: For people.
        scores: Where scores stand.
        lines: What to draw.
        datasets: What gets a panel; by default a category's average, or its only dataset.
        axis: Shared by all panels.
        caption: What is drawn; what intervals are is said after it.
        is_connected: Whether lines go through the points, but for outlined ones.
    """
    panels = []
    for dataset in datasets or shown_datasets(scores):
        series = []
        for label, style, models in lines:
            points = [_point(scores, model, dataset, x) for x, model in models]
            if found := tuple(point for point in points if point is not None):
                series.append(Series(label, style, found, is_connected and not style.is_hollow))
        if series:
            unit = f"{metric_name(dataset.metric)}, %"
            panels.append(Panel(dataset.name, _title(dataset), unit, tuple(series)))
    if not panels:
        return Skipped(name, title, "none of its models has a score")
    if is_connected and any(len({x for x, _ in models}) < len(models) for _, _, models in lines):
        caption += (
            "Models alike in all that is shown are points of their own; lines go through means. "
        )
    return Chart(name, title, caption + interval_note(scores), axis, tuple(panels))


def interval_note(scores: Scores) -> str:
    """Say what bars and numbers in brackets are, and what they leave out."""
    numbers = sorted(
        {
            score.estimate.num_seeds
            for score in scores.cells.values()
            if score.estimate is not None and score.estimate.half_width is not None
        }
    )
    if not numbers:
        return "Means without intervals: no score rests on two seeds or more."
    seeds = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    how = "Student's t"
    if scores.convention == "paper":
        share = round(100 * expected_coverage(numbers[0], convention="paper"))
        unit = "runs" if scores.num_pretraining_runs > 1 else "seeds"
        how = f"1.96 standard errors, which with {numbers[0]} {unit} cover about {share} %"
    if scores.num_pretraining_runs > 1:
        return (
            f"Intervals: 95 % over {seeds} pretraining runs ({how}), each of them the mean of its "
            "fine-tuning seeds."
        )
    return (
        f"Intervals: 95 % over {seeds} fine-tuning seeds ({how}). One pretraining run per model: "
        "they do not cover pretraining variance."
    )
