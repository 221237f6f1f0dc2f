"""Which models may stand in one figure, and what their series are called."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from biphasic.analysis.palette import SeriesStyle, distinct_styles, objective_styles
from biphasic.analysis.plots.chart import Lines
from biphasic.analysis.score_table import ModelInfo, Scores
from biphasic.analysis.text import amount

Key = TypeVar("Key", bound=Hashable)
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


def distinct(models: Iterable[ModelInfo], attribute: str) -> list[object]:
    """Return the values of a factor, each once, in the models' order."""
    return [*dict.fromkeys(getattr(model, attribute) for model in models)]


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


def shared_places_note(lines: Lines) -> str:
    """Say that several models stand in one place; empty where none do."""
    if any(len({x for x, _ in found}) < len(found) for _, _, found in lines):
        return "Models alike in all that is shown are points of their own; lines go through means. "
    return ""
