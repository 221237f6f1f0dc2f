"""Planned comparisons of a study: pairs of arms, named before the results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import Field

from biphasic.config import Config, nearest
from biphasic.errors import ConfigError


class PlannedComparison(Config):
    """Two arms to compare; all planned comparisons are corrected together."""

    arms: tuple[str, str]
    """Names of the two arms, or patterns such as `clm-*`. Each stands for one arm, or for all
    pretraining runs of one recipe; naming one run names them all. The name of an intermediate state
    ends with its step."""
    tasks: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Tasks on which they are compared; defaults to all."""


# Names of the states of both sides; several if they are runs of a recipe.
Sides = tuple[tuple[str, ...], tuple[str, ...]]


def resolve(
    comparison: PlannedComparison, recipes: Mapping[str, str], tasks: Sequence[str], where: str
) -> Sides:
    """Return the names of both sides."""
    for task in comparison.tasks or ():
        if task not in tasks:
            raise ConfigError(f"{where}: no task '{task}'{nearest(task, tasks)}")
    return resolve_arms(comparison.arms, recipes, where)


def resolve_arms(arms: tuple[str, str], recipes: Mapping[str, str], where: str) -> Sides:
    """Return the names of both arms of a difference."""
    first, second = (_side(pattern, recipes, where) for pattern in arms)
    if first == second:
        raise ConfigError(f"{where}: both arms are '{first[0]}'; name two")
    return first, second


def _side(pattern: str, recipes: Mapping[str, str], where: str) -> tuple[str, ...]:
    matching = [name for name in recipes if fnmatchcase(name, pattern)]
    if not matching:
        raise ConfigError(f"{where}: no arm '{pattern}'{nearest(pattern, recipes)}")
    found = _distinct(recipes[name] for name in matching)
    if len(found) > 1:
        first, second = (next(n for n in matching if recipes[n] == recipe) for recipe in found[:2])
        raise ConfigError(
            f"{where}: '{pattern}' matches different recipes, such as '{first}' and '{second}'"
        )
    return tuple(name for name, recipe in recipes.items() if recipe == found[0])


def _distinct(values: Iterable[str]) -> list[str]:
    return [*dict.fromkeys(values)]
