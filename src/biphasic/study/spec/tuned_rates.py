"""Tuned peak rates of a study, by model, first objective and optimizer.

A study's `recipe` has one peak rate for all arms, but the best rate depends on these. A tuned rate
replaces it in all arms that begin with its model and objective and have its optimizer. It does not
change the names of arms. `biphasic study tune` writes tuned rates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Field, PositiveFloat

from biphasic.config import Config
from biphasic.model.presets import Architecture, PresetName
from biphasic.objectives.alternate import Alternate
from biphasic.objectives.mix import Mix
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.objectives.phases import PhaseConfig
from biphasic.objectives.registry import OBJECTIVES
from biphasic.study.spec.arms import ArmConfig
from biphasic.training.optimizers.registry import OptimizerName
from biphasic.training.recipe import PretrainedModel, Recipe

if TYPE_CHECKING:
    FirstObjective = ObjectiveConfig
else:
    FirstObjective = Annotated[
        Union[(*OBJECTIVES, Alternate, Mix)],
        Field(discriminator="objective"),
    ]

Model = PresetName | Architecture | PretrainedModel


class TunedRate(Config):
    """The peak rate of arms with a given model, first objective and optimizer."""

    model: Model
    """As in `recipe`."""
    phase: FirstObjective
    """Objective of the first phase, with its settings."""
    optimizer: OptimizerName = "adamw"
    """Name of the optimizer."""
    peak: PositiveFloat
    """Peak rate of the first schedule, which ends where a phase has its own schedule."""

    def fits(self, recipe: Recipe) -> bool:
        """Return whether a recipe has this model, first objective and optimizer."""
        return (self.model, self.phase.model_dump(), self.optimizer) == tuned_by(recipe)

    def anchored(self, folder: Path) -> TunedRate:
        """Return the rate with a relative model path resolved against a folder."""
        if not isinstance(self.model, PretrainedModel):
            return self
        return self.model_copy(update={"model": self.model.anchored(folder)})


def tuned_by(recipe: Recipe) -> tuple[Any, ...]:
    """Return what a tuned rate depends on."""
    return recipe.model, first_objective(recipe), recipe.optimizer.name


def first_objective(recipe: Recipe) -> dict[str, Any]:
    """Return the settings of a recipe's first objective; the recipe must have a phase."""
    return recipe.phases[0].model_dump(exclude=set(PhaseConfig.model_fields))


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


def with_tuned_rate(recipe: Recipe, arm: ArmConfig, rates: Sequence[TunedRate]) -> Recipe:
    """Return an arm's recipe with its tuned rate, if it has one.

    An arm's own peak and the schedules of its phases override tuned rates.
    """
    if not rates or why_not_tuned(arm) is not None:
        return recipe
    for rate in rates:
        if rate.fits(recipe):
            schedule = recipe.learning_rate.model_copy(update={"peak": rate.peak})
            return recipe.model_copy(update={"learning_rate": schedule})
    return recipe


def refuse_repeated_rates(rates: Sequence[TunedRate]) -> None:
    """Check that no two rates have the same model, phase and optimizer.

    Raises:
        ValueError: Two rates do.
    """
    keys = [(rate.model, rate.phase.model_dump(), rate.optimizer) for rate in rates]
    for index, key in enumerate(keys):
        if key in keys[:index]:
            raise ValueError(
                f"tuned_rates: {keys.index(key)} and {index} have the same model, phase and "
                "optimizer; keep one of them"
            )
