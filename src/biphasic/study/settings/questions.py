"""Planned comparisons, and questions: comparisons with the rule that decides and forecasts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import Annotated, NamedTuple, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from biphasic.config import Config, nearest, refuse_repeats
from biphasic.errors import ConfigError
from biphasic.facts import is_baseline


class PlannedComparison(Config):
    """Two arms to compare; all planned comparisons are corrected together."""

    arms: tuple[str, str]
    """Names of the two arms, or patterns such as `clm-*`. Each stands for one arm, or for all
    pretraining runs of one recipe; naming one run names them all. The name of an intermediate state
    ends with its step. One may be a floor or reference of the tasks, such as `floor:dictionary`."""
    tasks: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Tasks on which they are compared; defaults to all."""

    @model_validator(mode="after")
    def _each_task_once(self) -> Self:
        refuse_repeats("tasks", self.tasks or ())
        return self


class Forecast(Config):
    """The expected difference, in percentage points."""

    difference: float
    """The most likely difference."""
    interval: tuple[float, float]
    """Both ends of the interval that should hold the measured difference nine times in ten."""

    @model_validator(mode="after")
    def _ordered(self) -> Forecast:
        low, high = self.interval
        if not (low <= self.difference <= high and low < high):
            raise ValueError(
                f"difference {self.difference:g} is not inside the interval {low:g} to {high:g}; "
                "write the lower end first"
            )
        return self


class AskedComparison(PlannedComparison):
    """A difference of two arms, or of two such differences, on some tasks."""

    minus: tuple[str, str] | None = None
    """Two more arms, c and d: the comparison is then (a - b) - (c - d)."""
    forecast: Forecast | None = None
    """What is expected on each of the tasks."""


class SupportRule(Config):
    """When the answer is "supported"."""

    clear_for: PositiveInt = 1
    """Fewest comparisons that are clearly above zero."""
    clear_against: NonNegativeInt = 0
    """Most comparisons that are clearly below zero."""


class AgainstRule(Config):
    """When the answer is "counts against"."""

    clear_against: PositiveInt
    """Fewest comparisons that are clearly below zero."""
    clear_for: NonNegativeInt | None = None
    """Most comparisons that are clearly above zero; any number if left out."""


class Question(Config):
    """A question, whose comparisons are corrected among themselves."""

    name: Annotated[str, Field(min_length=1)]
    """Short name in reports, such as Q1."""
    question: Annotated[str, Field(min_length=1)]
    """The question as a sentence. Its answer is yes if the differences are above zero."""
    comparisons: Annotated[tuple[AskedComparison, ...], Field(min_length=1)]
    """Differences that decide it; each task is one comparison."""
    supported_if: SupportRule = SupportRule()
    """When the answer is "supported"."""
    against_if: AgainstRule | None = None
    """When the answer is "counts against"; the mirror image of `supported_if` if left out."""
    margin: Annotated[
        float | None, Field(gt=0, le=100, exclude_if=lambda margin: margin is None)
    ] = None
    """Percentage points: arms whose difference is smaller are tested to be level."""

    @property
    def counts_against_if(self) -> AgainstRule:
        """The rule for "counts against"."""
        rule = self.supported_if
        return self.against_if or AgainstRule(
            clear_against=rule.clear_for, clear_for=rule.clear_against
        )


# Names of the states of both sides; several if they are runs of a recipe.
Sides = tuple[tuple[str, ...], tuple[str, ...]]


def resolve_planned(
    comparisons: Sequence[PlannedComparison],
    recipes: Mapping[str, str],
    tasks: Sequence[str],
    where: str,
) -> list[Sides]:
    """Return the names of both sides of each comparison; `recipes` are those of states."""
    found = [resolve(one, recipes, tasks, f"{where}.{n}") for n, one in enumerate(comparisons)]
    _refuse_repeats(comparisons, [AskedArms(arms, None) for arms in found], tasks, where)
    return found


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
    sides: list[tuple[str, ...]] = []
    if all(map(is_baseline, arms)):
        raise ConfigError(f"{where}: '{arms[0]}' and '{arms[1]}' are baselines; name an arm")
    for pattern in arms:
        if is_baseline(pattern):
            sides.append((pattern,))
            continue
        matching = [name for name in recipes if fnmatchcase(name, pattern)]
        if not matching:
            raise ConfigError(f"{where}: no arm '{pattern}'{nearest(pattern, recipes)}")
        found = [*dict.fromkeys(recipes[name] for name in matching)]
        if len(found) > 1:
            one, other = (next(n for n in matching if recipes[n] == each) for each in found[:2])
            raise ConfigError(
                f"{where}: '{pattern}' matches different recipes, such as '{one}' and '{other}'"
            )
        sides.append(tuple(name for name, recipe in recipes.items() if recipe == found[0]))
    first, second = sides
    if first == second:
        raise ConfigError(f"{where}: both arms are '{first[0]}'; name two")
    return first, second


class AskedArms(NamedTuple):
    """Evaluated states of a comparison: (a - b), minus (c - d) if there are four."""

    arms: Sides
    minus: Sides | None


def resolve_question(
    asked: Question, recipes: Mapping[str, str], tasks: Sequence[str], where: str
) -> list[AskedArms]:
    """Return the states of each comparison; `recipes` as in `resolve_planned`."""
    number = sum(len(one.tasks or tasks) for one in asked.comparisons)
    needed = max(asked.supported_if.clear_for, asked.counts_against_if.clear_against)
    if needed > number:
        raise ConfigError(
            f"{where}: {needed} clear comparisons can never be reached, as there are {number} "
            "(each task of a pair of arms is one); lower the number or add comparisons"
        )
    found = []
    for index, one in enumerate(asked.comparisons):
        place = f"{where}.comparisons.{index}"
        arms = resolve(one, recipes, tasks, place)
        minus = one.minus and resolve_arms(one.minus, recipes, f"{place}.minus")
        if minus == arms:
            raise ConfigError(f"{place}: 'minus' has the same arms as 'arms'; name others")
        found.append(AskedArms(arms, minus))
    _refuse_repeats(asked.comparisons, found, tasks, f"{where}.comparisons")
    return found


def refuse_uneven(asked: Sequence[AskedArms], encoders: Collection[str], where: str) -> None:
    """Refuse arms with one pretraining run beside others with several: no test has both."""
    # Baselines and finished encoders are paired with every run.
    by_number = {
        len(side): side[0]
        for one in asked
        for side in (*one.arms, *(one.minus or ()))
        if not (is_baseline(side[0]) or side[0] in encoders)
    }
    most = max(by_number, default=1)
    if most > 1 and (alone := by_number.get(1)):
        raise ConfigError(
            f"{where}: '{by_number[most]}' has {most} pretraining runs and '{alone}' has one, so "
            f"they cannot be compared; give '{alone}' runs with the same seeds (recipe.seed)"
        )


def _refuse_repeats(
    comparisons: Sequence[PlannedComparison],
    found: Sequence[AskedArms],
    tasks: Sequence[str],
    where: str,
) -> None:
    """Refuse a difference that is written twice, also with other arms that cancel."""
    seen: dict[tuple[Weights, str], int] = {}
    for index, (arms, one) in enumerate(zip(found, comparisons, strict=True)):
        for task in one.tasks or tasks:
            first = seen.setdefault((_weights(arms), task), index)
            if first < index:
                raise ConfigError(
                    f"{where}.{index}: on task '{task}' the same difference as {where}.{first}, "
                    "apart from sign and scale; remove one of them"
                )


# Sides of a comparison with their weights, as multiples of the first one's.
Weights = tuple[tuple[tuple[str, ...], Fraction], ...]


def _weights(asked: AskedArms) -> Weights:
    totals: Counter[tuple[str, ...]] = Counter()
    for side, weight in zip((*asked.arms, *(asked.minus or ())), (1, -1, -1, 1), strict=False):
        totals[side] += weight
    weights = sorted((side, weight) for side, weight in totals.items() if weight)
    return tuple((side, Fraction(weight, weights[0][1])) for side, weight in weights)
