"""Arms: ways to pretrain, each with what it changes of the recipe that all share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveInt

from biphasic.config import NAME_PATTERN, Config, nearest, parse_config
from biphasic.errors import ConfigError
from biphasic.model.presets import Architecture, PresetName
from biphasic.objectives.lr import LearningRateConfig
from biphasic.objectives.phase import MOST_TOKENS
from biphasic.objectives.phases import Phase
from biphasic.training.recipe import (
    OptimizerConfig,
    Precision,
    PretrainedModel,
    Recipe,
    Seeds,
    anchored_phases,
)

Name = Annotated[str, Field(pattern=NAME_PATTERN)]


class RecipeConfig(Config):
    """What all arms of a study share; see `Recipe`."""

    model: PresetName | Architecture | PretrainedModel = "nano"
    """A preset's name, dimensions, or a finished model."""
    max_seqlen: Annotated[int, Field(gt=0, le=MOST_TOKENS)] = 256
    """Capacity of a row, and longest sequence of the model, in tokens."""
    rows_per_step: PositiveInt = 8
    """Rows of the global batch."""
    learning_rate: LearningRateConfig
    """Schedule over all phases together, until one begins a schedule of its own."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """AdamW's constants."""
    precision: Precision = "bf16"
    """Of the computation; weights are kept in fp32 either way."""
    seeds: Seeds = Seeds()
    """One per stream."""

    def changed(self, changes: Mapping[str, Any]) -> RecipeConfig:
        """Return the settings with some replaced; groups of settings are changed one by one.

        Raises:
            ConfigError: A setting does not exist or has a wrong value.
        """
        if not changes:
            return self
        raw = self.model_dump(exclude_unset=True)
        return parse_config(RecipeConfig, merge_settings(raw, changes), where="recipe")

    def anchored(self, folder: Path) -> RecipeConfig:
        """Return the settings with a relative path of the model read from a folder."""
        if not isinstance(self.model, PretrainedModel):
            return self
        return self.model_copy(update={"model": self.model.anchored(folder)})


class ArmConfig(Config):
    """One way to pretrain."""

    name: Name
    """Short name, used in files."""
    label: str = ""
    """What reports call it; the name when not given."""
    group: str = ""
    """Heading under which plans count it."""
    recipe: dict[str, Any] = Field(default_factory=dict)
    """Settings of `recipe` that differ for this arm."""
    phases: tuple[Phase, ...] = ()
    """Objectives in order; none is the untrained encoder, the floor of every comparison."""

    @property
    def family(self) -> str:
        """Objectives in order, without repeats: `CLM`, `MLM`, `CLM+MLM`, ... or `none`."""
        return family_of(self.phases)

    def recipe_from(self, shared: RecipeConfig, *, where: str = "") -> Recipe:
        """Return the arm's recipe; `where` begins messages in place of the arm's name.

        Raises:
            ConfigError: A setting does not exist or has a wrong value.
        """
        try:
            settings = shared.changed(self.recipe)
        except ConfigError as error:
            raise ConfigError(str(error), about=where or f"arm '{self.name}'") from None
        values = {name: getattr(settings, name) for name in RecipeConfig.model_fields}
        return Recipe(phases=self.phases, **values)

    def anchored(self, folder: Path) -> ArmConfig:
        """Return the arm with relative paths read from a folder: the study file's."""
        update: dict[str, Any] = {"phases": anchored_phases(self.phases, folder)}
        model = self.recipe.get("model")
        if isinstance(model, Mapping) and "pretrained" in model:
            finished = parse_config(PretrainedModel, model, where=f"arm '{self.name}': model")
            settings = finished.anchored(folder).model_dump(exclude_unset=True)
            update["recipe"] = {**self.recipe, "model": settings}
        return self.model_copy(update=update)


class EvaluationPoints(Config):
    """Steps on the way of some arms at which they are evaluated as well."""

    arms: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names of arms; `*` stands for anything."""
    steps: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    """Optimizer steps before each evaluation; the end of an arm is evaluated anyway."""

    def meant(self, names: Sequence[str]) -> list[str]:
        """Return the names of the arms that are meant.

        Raises:
            ConfigError: There is no arm of a name.
        """
        found: list[str] = []
        for pattern in self.arms:
            matching = [name for name in names if fnmatchcase(name, pattern)]
            if not matching:
                raise ConfigError(f"evaluation_points: no arm '{pattern}'{nearest(pattern, names)}")
            found += matching
        return found


def family_of(phases: Sequence[Phase]) -> str:
    """Return objectives in order, without repeats in a row; `none` without phases."""
    names = [phase.objective.upper() for phase in phases]
    kept = [name for index, name in enumerate(names) if index == 0 or names[index - 1] != name]
    return "+".join(kept) or "none"


def merge_settings(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Lay settings on others: groups are merged, all else is replaced.

    What chooses a model replaces the other choice: dimensions and a finished one are no group.
    """
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and key != "model":
            merged[key] = merge_settings(old, value)
        else:
            merged[key] = value
    return merged
