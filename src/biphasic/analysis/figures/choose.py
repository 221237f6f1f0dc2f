"""Models, labels and charts of figures of scores."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from biphasic.amounts import amount
from biphasic.analysis.estimate import expected_coverage
from biphasic.analysis.figures.chart import Axis, Chart, Panel, Point, Series, Skipped
from biphasic.analysis.records import ArmData
from biphasic.analysis.scores.table import DatasetInfo, ModelInfo, Scores
from biphasic.analysis.text import listing
from biphasic.palette import (
    FLOOR,
    LINES,
    SERIES,
    SeriesStyle,
    distinct_styles,
    objective_styles,
)

Key = TypeVar("Key", bound=Hashable)
Datasets = Sequence[DatasetInfo] | None
"""Datasets with a panel; None for each category's average, or its only dataset."""
Lines = Sequence[tuple[str, SeriesStyle, Sequence[tuple[float, ModelInfo]]]]
"""Label, style and models (with positions) of each series."""
Recipe = tuple[str, int]
"""Objective, and the share of CLM steps in percent."""
_REFERENCE_RATE = 0.4
"""The masking rate of most of the reference study's comparisons."""


def finished(scores: Scores) -> tuple[ModelInfo, ...]:
    """Return distinct trained models at the end of their first training."""
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
    """Return sizes in ascending order; sizes without parameter counts come last."""
    parameters: dict[str, float] = {}
    for model in models:
        parameters.setdefault(model.size, model.parameters or float("inf"))
    return sorted(parameters, key=lambda size: parameters[size])


def arm_styles(arms: Sequence[ArmData]) -> dict[str, SeriesStyle]:
    """Return a style for each arm, in the study's order; the untrained encoder is grey."""
    styles = distinct_styles([arm.name for arm in arms if not arm.is_untrained])
    styles = {
        name: replace(style, line=LINES[index // len(SERIES) % len(LINES)])
        for index, (name, style) in enumerate(styles.items())
    }
    return {arm.name: styles.get(arm.name, SeriesStyle(FLOOR, "o", ":")) for arm in arms}


def clm_share(model: ModelInfo) -> float:
    """Return the share of CLM steps of a model, in percent."""
    return 100 * model.clm_steps / model.total_steps if model.total_steps else 0.0


def reference_rate(models: Iterable[ModelInfo]) -> float | None:
    """Return the masking rate for comparisons of objectives.

    The reference study's 40 % if a model has it, else the most common rate (ties go to the higher
    one); None if no model masks.
    """
    rates = Counter(model.mask_rate for model in models if model.mask_rate is not None)
    if _REFERENCE_RATE in rates or not rates:
        return _REFERENCE_RATE if rates else None
    return max(rates, key=lambda rate: (rates[rate], rate))


def at_rate(models: Iterable[ModelInfo], rate: float | None) -> list[ModelInfo]:
    """Return the models with a masking rate, and those that do not mask."""
    return [model for model in models if model.mask_rate in (None, rate)]


def percent(share: float | None) -> str:
    """Format a masking rate as `40 %`."""
    return "–" if share is None else f"{100 * share:g} %"


def steps_text(steps: float) -> str:
    """Format steps for ticks: `42K`."""
    return amount(steps).replace(" ", "")


def masking_note(rate: float | None) -> str:
    """Return a sentence about the masking rate of compared models; empty if none masks."""
    return "" if rate is None else f"MLM at a masking rate of {percent(rate)}. "


def recipe(model: ModelInfo) -> Recipe:
    """Return the objective of a model and its share of CLM steps."""
    return model.objective, round(clm_share(model))


def recipe_looks(recipes: Iterable[Recipe]) -> dict[Recipe, tuple[str, SeriesStyle]]:
    """Return label and style of each recipe; labels of mixtures include their share of CLM."""
    recipes = [*recipes]
    styles = objective_styles(objective for objective, _ in recipes)
    mixed = [key for key in recipes if key[0] == "CLM+MLM"]
    # The first two styles are those of MLM and CLM.
    mixed_styles = distinct_styles([("MLM", 0), ("CLM", 0), *mixed])
    return {
        key: (f"{key[0]}, {key[1]} % CLM", mixed_styles[key])
        if key in mixed
        else (key[0], styles[key[0]])
        for key in recipes
    }


def shown_datasets(scores: Scores, *, is_every: bool = False) -> tuple[DatasetInfo, ...]:
    """Return the datasets with a panel.

    Unless `is_every`, a category's average replaces its datasets, except if they have different
    metrics.
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
    """Return the title of a panel: the category of an average, else the dataset."""
    if dataset.is_average:
        title = dataset.facts.title
        return dataset.name if title == dataset.task else title.capitalize()
    return dataset.name


def _point(scores: Scores, model: ModelInfo, dataset: DatasetInfo, x: float) -> Point | None:
    """Return one score as a point; None if it is unknown."""
    estimate = scores.get(model.name, dataset.name).estimate
    if estimate is None:
        return None
    if estimate.half_width is None:
        return Point(x, estimate.mean, model=model.name)
    return Point(x, estimate.mean, estimate.low, estimate.high, model.name)


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
    """Return a figure with a panel per dataset that has at least one score.

    A sentence about intervals is appended to the caption.
    """
    panels = []
    for dataset in datasets or shown_datasets(scores):
        series = []
        for label, style, models in lines:
            points = [_point(scores, model, dataset, x) for x, model in models]
            if known := tuple(point for point in points if point is not None):
                series.append(Series(label, style, known, is_connected and not style.is_hollow))
        if series:
            unit = f"{dataset.metric_facts.title}, %"
            panels.append(Panel(dataset.name, _title(dataset), unit, tuple(series)))
    if not panels:
        return Skipped(name, title, "none of its models has a score")
    if is_connected and any(len({x for x, _ in models}) < len(models) for _, _, models in lines):
        caption += "Lines connect means where several models share a position. "
    return Chart(name, title, caption + interval_note(scores), axis, tuple(panels))


def _fixed(scores: Scores) -> str:
    return f" Fixed in all runs: {listing(scores.fixed_streams)}." if scores.fixed_streams else ""


def interval_note(scores: Scores) -> str:
    """Return a sentence about the intervals and the variance that they do not cover."""
    numbers = sorted(
        {
            score.estimate.num_seeds
            for score in scores.cells.values()
            if score.estimate is not None and score.estimate.half_width is not None
        }
    )
    if not numbers:
        return "Means without intervals: every score has fewer than two seeds."
    seeds = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    how = "Student's t"
    if scores.convention == "paper":
        share = round(100 * expected_coverage(numbers[0], convention="paper"))
        unit = "runs" if scores.num_pretraining_runs > 1 else "seeds"
        how = f"1.96 standard errors, which cover about {share} % with {numbers[0]} {unit}"
    if scores.num_pretraining_runs > 1:
        return (
            f"Intervals: 95 % over {seeds} pretraining runs ({how}); each run is the mean of its "
            f"fine-tuning seeds.{_fixed(scores)}"
        )
    return (
        f"Intervals: 95 % over {seeds} fine-tuning seeds ({how}). One pretraining run per model: "
        "they do not cover pretraining variance."
    )
