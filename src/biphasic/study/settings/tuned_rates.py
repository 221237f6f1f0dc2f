"""Tuned peak rates of a study, of arms by name or by model, first objective and optimizer.

A study's `recipe` has one peak rate for all arms, but the best rate depends on these. A tuned rate
replaces it. It does not change the names of arms. `biphasic study tune` writes tuned rates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, combinations
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeGuard

from pydantic import Discriminator, Field, PositiveFloat, PositiveInt, Tag

from biphasic.config import Config, nearest, refuse_repeats
from biphasic.model.shape import Architecture, PresetName
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.objectives.phases import PHASE_OBJECTIVES, Phase, PhaseConfig, one_of
from biphasic.study.settings.arms import ArmConfig, Name
from biphasic.training.optimizers.registry import OptimizerName
from biphasic.training.recipe import PretrainedModel, Recipe

if TYPE_CHECKING:
    FirstObjective = ObjectiveConfig
else:
    FirstObjective = one_of(*PHASE_OBJECTIVES)

NumTrials = Annotated[PositiveInt | None, Field(exclude_if=lambda number: number is None)]
Schedule = Annotated[Literal["first", "last"], Field(exclude_if=lambda which: which == "first")]
# Not written if it is the first one: earlier records stay as they were.
Model = PresetName | Architecture | PretrainedModel


class ObjectiveRate(Config):
    """The peak rate of arms with a given model, first objective and optimizer."""

    model: Model
    """As in `recipe`."""
    phase: FirstObjective
    """Objective of the first phase, with its settings."""
    optimizer: OptimizerName = "adamw"
    """Name of the optimizer."""
    peak: PositiveFloat
    """Peak rate of the first schedule, which ends where a phase has its own schedule."""
    trials: NumTrials = None
    """Number of rates that were tried, for the report."""

    @classmethod
    def of(cls, recipe: Recipe, *, peak: float, trials: int | None = None) -> ObjectiveRate:
        """Return the rate of a recipe's first objective; it must have a phase."""
        phase = recipe.phases[0].model_dump(exclude=set(PhaseConfig.model_fields))
        optimizer = recipe.optimizer.name
        raw = {"model": recipe.model, "phase": phase, "optimizer": optimizer}
        return cls.model_validate({**raw, "peak": peak, "trials": trials})


class ArmRate(Config):
    """The peak rate of arms by name, such as the replicates of one recipe."""

    arms: Annotated[tuple[Name, ...], Field(min_length=1)]
    """Names of arms; the rate was tuned with the settings and seeds of the first."""
    schedule: Schedule = "first"
    """The schedule that gets the rate: the recipe's, which ends where a phase has its own
    `learning_rate`, or the last one that a phase has."""
    peak: PositiveFloat
    """Peak rate of the schedule."""
    trials: NumTrials = None
    """Number of rates that were tried, for the report."""


def _sort(raw: Any) -> str:
    """Return which sort of rate an entry of a file is."""
    is_arm = "arms" in raw if isinstance(raw, Mapping) else isinstance(raw, ArmRate)
    return ArmRate.__name__ if is_arm else ObjectiveRate.__name__


TunedRate = Annotated[
    Annotated[ArmRate, Tag(ArmRate.__name__)] | Annotated[ObjectiveRate, Tag("ObjectiveRate")],
    Discriminator(_sort),
]


def why_not_tuned(arm: ArmConfig) -> str | None:
    """Return why an arm cannot have a tuned rate; None if it can."""
    if not arm.phases:
        return "it is not trained"
    if arm.phases[0].learning_rate is not None:
        return "its first phase sets learning_rate itself"
    schedule = arm.recipe.get("learning_rate")
    if isinstance(schedule, Mapping) and "peak" in schedule:
        return "it sets recipe.learning_rate.peak itself"
    return None


def tuned_rate(
    recipe: Recipe, arm: ArmConfig, rates: Sequence[TunedRate]
) -> ArmRate | ObjectiveRate | None:
    """Return the rate of an arm's first schedule, if it has one; names precede objectives."""
    if not rates or why_not_tuned(arm) is not None:
        return None
    named = (
        rate
        for rate in rates
        if isinstance(rate, ArmRate) and rate.schedule == "first" and arm.name in rate.arms
    )
    of_objective = (
        rate
        for rate in rates
        # Of the same model, first objective with all its settings, and optimizer.
        if rate == ObjectiveRate.of(recipe, peak=rate.peak, trials=rate.trials)
    )
    return next(chain(named, of_objective), None)


def last_rate(arm: ArmConfig, rates: Sequence[TunedRate]) -> ArmRate | None:
    """Return the tuned rate of an arm's last schedule, if it has one."""
    last = (rate for rate in rates if is_of_last(rate) and arm.name in rate.arms)
    return None if start_of_last(arm.phases) is None else next(last, None)


def is_of_last(rate: TunedRate) -> TypeGuard[ArmRate]:
    """Return whether a rate is that of the last schedule of arms."""
    return isinstance(rate, ArmRate) and rate.schedule == "last"


def with_first_peak(recipe: Recipe, peak: float) -> Recipe:
    """Return a recipe with another peak of its first schedule."""
    schedule = recipe.learning_rate.model_copy(update={"peak": peak})
    return recipe.model_copy(update={"learning_rate": schedule})


def with_last_schedule(recipe: Recipe, **changes: float) -> Recipe:
    """Return a recipe with changes to the last schedule that a phase has, or else to its own."""
    last = start_of_last(recipe.phases)
    owner: Any = recipe if last is None else recipe.phases[last]
    schedule = owner.learning_rate.model_copy(update=changes)
    changed = owner.model_copy(update={"learning_rate": schedule})
    if last is None:
        return changed
    phases = (*recipe.phases[:last], changed, *recipe.phases[last + 1 :])
    return recipe.model_copy(update={"phases": phases})


def start_of_last(phases: Sequence[Phase]) -> int | None:
    """Return the index of the last phase with its own schedule, if one has any."""
    starts = [index for index, phase in enumerate(phases) if phase.learning_rate]
    return starts[-1] if starts else None


def check_rates(rates: Sequence[TunedRate], arms: Sequence[str]) -> None:
    """Check that no two rates are for the same arms by rule, and that named arms exist."""
    by_name = [rate for rate in rates if isinstance(rate, ArmRate)]
    for schedule in ("first", "last"):
        same = (rate.arms for rate in by_name if rate.schedule == schedule)
        refuse_repeats("tuned_rates: arms", chain.from_iterable(same))
    named = chain.from_iterable(rate.arms for rate in by_name)
    if unknown := next((name for name in named if name not in arms), None):
        raise ValueError(f"tuned_rates: no arm '{unknown}'{nearest(unknown, arms)}")
    for (one, first), (other, second) in combinations(enumerate(rates), 2):
        if first.model_copy(update={"peak": second.peak, "trials": second.trials}) == second:
            raise ValueError(
                f"tuned_rates: {one} and {other} have the same model, phase and optimizer; keep "
                "one of them"
            )
