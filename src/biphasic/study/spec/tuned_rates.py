"""Peak rates of a study by model and first objective, as `biphasic study tune` writes them.

A study's `recipe` has one peak for all arms, and the best one depends on what is trained. A tuned
rate replaces it in the arms that begin with a model and an objective. Names of arms do not tell
it: they stand for what was compared. Identities follow from the rate itself, as ever.
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
from biphasic.objectives.phase import PhaseConfig
from biphasic.objectives.registry import OBJECTIVES
from biphasic.study.spec.arms import ArmConfig
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
    """The peak rate of the arms that begin with a model and an objective."""

    model: Model
    """As in `recipe`."""
    phase: FirstObjective
    """What the arms' first phase trains for, without settings that every phase has."""
    peak: PositiveFloat
    """Of the schedule that begins with the first phase; it lasts until a phase has one of its
    own."""

    def fits(self, recipe: Recipe) -> bool:
        """Tell whether a recipe begins with this model and this objective."""
        return self.model == recipe.model and self.phase.model_dump() == first_objective(recipe)

    def anchored(self, folder: Path) -> TunedRate:
        """Return the rate with a relative path of its model read from a folder."""
        if not isinstance(self.model, PretrainedModel):
            return self
        return self.model_copy(update={"model": self.model.anchored(folder)})


def first_objective(recipe: Recipe) -> dict[str, Any]:
    """Return the settings of the objective that a recipe begins with; it must have a phase."""
    return recipe.phases[0].model_dump(exclude=set(PhaseConfig.model_fields))


def why_not_tuned(arm: ArmConfig) -> str | None:
    """Say why an arm has no tuned rate; None where it can have one."""
    if not arm.phases:
        return "it is not trained"
    if arm.phases[0].learning_rate is not None:
        return "its first phase has a learning_rate of its own"
    schedule = arm.recipe.get("learning_rate")
    if isinstance(schedule, Mapping) and "peak" in schedule:
        return "it sets recipe.learning_rate.peak itself"
    return None


def with_tuned_rate(recipe: Recipe, arm: ArmConfig, rates: Sequence[TunedRate]) -> Recipe:
    """Return an arm's recipe at its tuned rate, where there is one.

    What an arm sets itself goes first: its own peak, and the schedules of its phases.

    Args:
        recipe: Of the arm, at the peak that all arms share.
        arm: The arm.
        rates: All tuned rates of the study.
    """
    if not rates or why_not_tuned(arm) is not None:
        return recipe
    for rate in rates:
        if rate.fits(recipe):
            schedule = recipe.learning_rate.model_copy(update={"peak": rate.peak})
            return recipe.model_copy(update={"learning_rate": schedule})
    return recipe


def refuse_repeated_rates(rates: Sequence[TunedRate]) -> None:
    """Refuse two rates for the same arms.

    Raises:
        ValueError: There are.
    """
    keys = [(rate.model, rate.phase.model_dump()) for rate in rates]
    for index, key in enumerate(keys):
        if key in keys[:index]:
            raise ValueError(
                f"tuned_rates: {keys.index(key)} and {index} are for the same model and phase; "
                "keep one of them"
            )
