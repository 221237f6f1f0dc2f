"""Which models may stand in one figure, and what their series are called."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from biphasic.analysis.score_table import ModelInfo, Scores
from biphasic.analysis.text import amount

Key = TypeVar("Key", bound=Hashable)
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


def shared_places_note(lines: Mapping[str, Sequence[float]]) -> str:
    """Say that several models stand in one place; empty where none do."""
    if any(len(set(places)) < len(places) for places in lines.values()):
        return "Models alike in all that is shown are points of their own; lines go through means. "
    return ""
