"""Arms: ways to pretrain, each with its changes to the shared recipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveInt, field_validator, model_validator

from biphasic.config import NAME_PATTERN, Config, nearest, parse_config
from biphasic.data.packing import Attention
from biphasic.errors import ConfigError
from biphasic.files import expanded
from biphasic.model.shape import Architecture, PresetName
from biphasic.objectives.phases import Phase
from biphasic.plugins import anchored, load_pinned
from biphasic.training.recipe import PretrainedModel, Recipe, RecipeSettings, Seeds

Name = Annotated[str, Field(pattern=NAME_PATTERN)]


class RecipeConfig(RecipeSettings):
    """The settings that all arms of a study share; see `Recipe`."""

    model: PresetName | Architecture | PretrainedModel = "nano"
    """A preset's name, dimensions, or a pretrained model."""

    @model_validator(mode="before")
    @classmethod
    def _one_seed(cls, raw: Any) -> Any:
        return spelled_out(raw)

    def changed(self, changes: Mapping[str, Any]) -> RecipeConfig:
        """Return the settings with changes; nested settings are merged, not replaced."""
        if not changes:
            return self
        raw = self.model_dump(exclude_unset=True)
        return parse_config(RecipeConfig, merge_settings(raw, changes), where="recipe")


SEED = "seed"  # A setting of recipes in study files: one seed for all streams of a pretraining run.


def spelled_out(recipe: Any) -> Any:
    """Return a recipe's settings with `seeds` in place of `seed`."""
    if not isinstance(recipe, Mapping) or SEED not in recipe:
        return recipe
    if "seeds" in recipe:
        raise ValueError("give 'seed' (of all streams) or 'seeds', not both")
    seed = recipe[SEED]
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed: expected a whole number, 0 or more (got {seed})")
    others = {name: value for name, value in recipe.items() if name != SEED}
    return {**others, "seeds": dict.fromkeys(Seeds.model_fields, seed)}


def read_recipe(
    recipe: Recipe | Mapping[str, Any] | Path | str, overrides: Iterable[str]
) -> Recipe:
    """Return a recipe from its settings, or from a file with overrides, after all checks."""
    where = "recipe"
    if isinstance(recipe, (str, Path)):
        path = expanded(recipe)
        where = str(path)
        recipe = load_pinned(Recipe, path, overrides).anchored(path.resolve().parent)
    elif any(True for _ in overrides):
        raise ConfigError("overrides: only for files; change the settings of the recipe instead")
    elif not isinstance(recipe, Recipe):
        recipe = parse_config(Recipe, recipe, where=where)
    try:
        recipe.check()
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return recipe


class ArmConfig(Config):
    """One way to pretrain."""

    name: Name
    """Short name, used in files."""
    label: str = ""
    """Name in reports; defaults to `name`."""
    group: str = ""
    """Group in which plans count it."""
    recipe: dict[str, Any] = Field(default_factory=dict)
    """Settings of `recipe` that differ for this arm."""
    phases: tuple[Phase, ...] = ()
    """Phases in order. Without phases the arm is the untrained encoder, a baseline."""
    encoder: PretrainedModel | None = None
    """A finished encoder or decoder, which is compared as it is, with its own tokenizer; such an
    arm has no phases and no recipe."""
    attention: Attention | None = None
    """How the arm's encoder attends in fine-tuning and scoring; null: as the protocol says. Two
    arms may differ in nothing else: a decoder as it is, and opened."""

    @field_validator("recipe", mode="before")
    @classmethod
    def _one_seed(cls, recipe: Any) -> Any:
        return spelled_out(recipe)

    @model_validator(mode="after")
    def _trained_or_finished(self) -> ArmConfig:
        if self.encoder is not None and (self.phases or self.recipe):
            raise ValueError(
                "encoder: a finished encoder has no phases and no recipe; to train it further, "
                "give it as recipe.model"
            )
        return self

    @property
    def family(self) -> str:
        """Objectives in order, without repeats: `CLM`, `MLM`, `CLM+MLM`, ... or `none`."""
        return family_of(self.phases)

    def recipe_from(self, shared: RecipeConfig, *, where: str = "") -> Recipe:
        """Return the arm's recipe; error messages begin with `where` or else the arm's name."""
        try:
            settings = shared.changed(self.recipe)
        except ConfigError as error:
            raise ConfigError(str(error), about=where or f"arm '{self.name}'") from None
        values = {name: getattr(settings, name) for name in RecipeConfig.model_fields}
        return Recipe(phases=self.phases, **values)

    def anchored(self, folder: Path) -> ArmConfig:
        """Return the arm with relative paths resolved against the study file's folder."""
        update: dict[str, Any] = {"phases": anchored(self.phases, folder)}
        if self.encoder is not None:
            update["encoder"] = self.encoder.anchored(folder)
        model = self.recipe.get("model")
        if isinstance(model, Mapping) and "pretrained" in model:
            pretrained = parse_config(PretrainedModel, model, where=f"arm '{self.name}': model")
            settings = pretrained.anchored(folder).model_dump(exclude_unset=True)
            update["recipe"] = {**self.recipe, "model": settings}
        return self.model_copy(update=update)


class EvaluationPoints(Config):
    """Intermediate steps of some arms at which they are also evaluated."""

    arms: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names of arms; `*` matches any characters."""
    steps: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    """Optimizer steps before each evaluation; the end of an arm is always evaluated."""

    def meant(self, names: Sequence[str]) -> list[str]:
        """Return the names that match."""
        matching: list[str] = []
        for pattern in self.arms:
            of_pattern = [name for name in names if fnmatchcase(name, pattern)]
            if not of_pattern:
                raise ConfigError(f"evaluation_points: no arm '{pattern}'{nearest(pattern, names)}")
            matching += of_pattern
        return matching


def family_of(phases: Sequence[Phase]) -> str:
    """Return objectives in order, without consecutive repeats; `none` without phases."""
    names = groupby(phase.short_name.upper() for phase in phases)
    return "+".join(name for name, _ in names) or "none"


def merge_settings(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge changes into settings: mappings are merged, other values replaced."""
    # Dimensions and a pretrained model are alternatives, so `model` is always replaced.
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and key != "model":
            merged[key] = merge_settings(old, value)
        else:
            merged[key] = value
    return merged
