"""Arms: ways to pretrain, each with its changes to the shared recipe; their axes and names.

An axis is the path of a setting in the arm (`recipe.model`, `phases.1.mlm_probability`) with its
values; several axes give every combination. `steps` of an arm is a budget: phases have their
steps or a share of it, one may take the rest, and a phase without steps is dropped.

A name such as `610m-clm-10k-mlm40-42k` has the model, then each objective with the step at its
end, then other differences from the study's recipe. `dec42k` marks a step at which a schedule has
decayed and another one begins.
"""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveInt, field_validator, model_validator

from biphasic.amounts import thousands
from biphasic.config import NAME_PATTERN, Config, nearest, parse_config, put, repeated
from biphasic.data.building.config import short_corpus_name
from biphasic.data.packing import Attention
from biphasic.errors import ConfigError
from biphasic.model.shape import Architecture, PresetName
from biphasic.objectives.phases import Phase
from biphasic.plugins import anchored_fields
from biphasic.training.recipe import PretrainedModel, Recipe, RecipeSettings, Seeds
from biphasic.training.timeline import PlacedPhase

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
        recipe, model = self.recipe, self.recipe.get("model")
        if isinstance(model, Mapping) and "pretrained" in model:
            pretrained = parse_config(PretrainedModel, model, where=f"arm '{self.name}': model")
            settings = pretrained.anchored(folder).model_dump(exclude_unset=True)
            recipe = {**recipe, "model": settings}
        return anchored_fields(self, folder, recipe=recipe)


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


def arm_name(recipe: Recipe, shared: RecipeConfig) -> str:
    """Return the name of an arm, with its differences from the study's shared recipe."""
    parts = [model_name(recipe.model)]
    phases = recipe.placed_phases
    for index, placed in enumerate(phases):
        following = phases[index + 1 :][:1]
        is_last = any(other.schedule_start == other.start for other in following)
        mark = "dec" if is_last and placed.schedule.decay_steps else ""
        parts += [_phase_name(placed), f"{mark}{thousands(placed.end)}"]
    if not phases:
        parts.append("untrained")
    return name_for_files("-".join([*parts, *_differences(recipe, shared)]))


def name_for_files(name: str) -> str:
    """Return a name in lower case, with underscores for what names of arms cannot have."""
    return re.sub(r"[^a-z0-9._-]+", "_", name.lower()).strip("_")


def recipe_name(recipe: Recipe) -> str:
    """Return the name of a recipe, from its model and phases only."""
    shared = {key: getattr(recipe, key) for key in RecipeConfig.model_fields}
    return arm_name(recipe, RecipeConfig(**shared))


def point_name(arm: str, step: int) -> str:
    """Return the name of an arm at an intermediate step: `610m-clm-42k-1000`."""
    return f"{arm}-{step}"


def model_name(model: str | Architecture | PretrainedModel) -> str:
    """Return the name of a model: its preset, layers times width, or the pretrained model."""
    if isinstance(model, str):
        return model
    if isinstance(model, PretrainedModel):
        return model.pretrained.rstrip("/").rpartition("/")[2]
    return f"{model.num_layers}x{model.hidden_size}"


def _phase_name(placed: PlacedPhase) -> str:
    phase = placed.phase
    parts = [phase.name_in_arms]
    if phase.learning_rate_scale != 1:
        parts.append(f"x{phase.learning_rate_scale:g}")
    if phase.optimizer_state == "reset":
        parts.append("reset")
    if phase.freeze:
        parts.append("frozen")
    if phase.lora:
        parts.append(f"lora{phase.lora.rank}")
    if phase.corpus:
        parts.append(short_corpus_name(phase.corpus))
    if phase.max_seqlen:
        parts.append(f"len{phase.max_seqlen}")
    if phase.rows_per_step:
        parts.append(f"rows{phase.rows_per_step}")
    return ".".join(parts)


def _differences(recipe: Recipe, shared: RecipeConfig) -> Iterator[str]:
    for key, name in (("peak", "lr"), ("warmup_steps", "warm"), ("decay_steps", "decay")):
        value = getattr(recipe.learning_rate, key)
        if value != getattr(shared.learning_rate, key):
            yield f"{name}{thousands(value) if isinstance(value, int) else f'{value:.6g}'}"
    for key, name in (("max_seqlen", "len"), ("rows_per_step", "rows"), ("precision", "")):
        if getattr(recipe, key) != getattr(shared, key):
            yield f"{name}{getattr(recipe, key)}"
    if recipe.rows != shared.rows:
        yield recipe.rows.replace("_", "-")
    seeds = _changed(recipe.seeds.model_dump(), shared.seeds.model_dump())
    if len({value for _, value in seeds}) == 1 and len(seeds) == len(Seeds.model_fields):
        yield f"seed{seeds[0][1]}"
    else:
        yield from (f"{key.removesuffix('_seed')}{value}" for key, value in seeds)
    if recipe.skip_steps != shared.skip_steps:
        yield ".".join(["skip", *map(str, recipe.skip_steps)])
    optimizer = recipe.optimizer
    if optimizer.name != shared.optimizer.name:
        yield optimizer.short_name
    # Settings that only this optimizer has are compared with their defaults.
    fields = type(optimizer).model_fields
    usual = {key: field.default for key, field in fields.items()} | shared.optimizer.model_dump()
    for key, value in _changed(optimizer.model_dump(exclude={"name"}), usual):
        yield f"{key.replace('_', '')}{'none' if value is None else f'{value:.6g}'}"


def _changed(settings: dict[str, Any], shared: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in settings.items() if value != shared[key]]


_UNNAMED = "arm"
_KEYS = ("axes", "steps")
_SETTINGS = {*ArmConfig.model_fields, "steps"} - {"name", "label"}
# Ten times as many arms as can be planned in a minute; more is probably a mistake.
MOST_ARMS = 10_000


class _Budget(Config):
    """Settings that only an arm with axes or a budget has."""

    steps: PositiveInt | None = None
    axes: dict[str, list[Any]] = Field(default_factory=dict)


def expand_arms(arms: list[Any], recipe: Any) -> list[Any]:
    """Expand the arms of a study file into single arms with names."""
    _refuse_many(len(arms), "arms")
    if not any(_is_template(arm) for arm in arms):
        return arms
    shared = None
    with suppress(ConfigError):  # which is reported elsewhere
        shared = parse_config(RecipeConfig, recipe, where="recipe")
    expanded: list[Any] = []
    for index, arm in enumerate(arms):
        if not _is_template(arm):
            expanded.append(_checked(arm, f"arms.{index}"))
            continue
        singles: set[str] = set()
        for point, raw in _multiply(arm, f"arms.{index}"):
            where = f"arms.{index}{_described(point)}"
            single = _spend(raw, where)
            if repr(single) in singles:
                continue  # a setting of a phase without steps makes no other arm
            singles.add(repr(single))
            name = single.get("name") or _name(single, shared, where)
            expanded.append(_checked({**single, "name": name}, where))
        _refuse_many(len(expanded), f"arms.0 to arms.{index}")
    names = (arm.get("name") for arm in expanded if isinstance(arm, Mapping))
    if several := repeated(name for name in names if name != _UNNAMED):
        raise ConfigError(
            f"arms: several arms are named {', '.join(several)}; give one of them another 'name', "
            "without axes"
        )
    return expanded


def _refuse_many(count: int, where: str) -> None:
    if count > MOST_ARMS:
        raise ConfigError(
            f"{where}: {count:,} arms, but a study has at most {MOST_ARMS:,}; split the study"
        )


def _is_template(arm: Any) -> bool:
    if not isinstance(arm, Mapping):
        return False
    return "name" not in arm or any(key in arm for key in _KEYS) or _has_shares(arm)


def _has_shares(arm: Mapping[str, Any]) -> bool:
    phases = arm.get("phases")
    return isinstance(phases, list) and any(
        isinstance(phase, Mapping) and "share" in phase for phase in phases
    )


def _checked(arm: Any, where: str) -> Any:
    """Check an arm; error messages begin with `where`, its number in the file."""
    if isinstance(arm, Mapping):
        parse_config(ArmConfig, arm, where=where)
    return arm


def _multiply(
    arm: Mapping[str, Any], where: str
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each combination of the axes' values, and the arm with these values."""
    budget = {key: arm[key] for key in _KEYS if key in arm}
    axes = parse_config(_Budget, budget, where=where).axes
    if axes and ("name" in arm or "label" in arm):
        raise ConfigError(
            f"{where}: arms with axes get their names automatically; remove 'name' and 'label'"
        )
    for path, values in axes.items():
        if not values:
            raise ConfigError(f"{where}: axes: '{path}' has no values")
    _refuse_many(math.prod(map(len, axes.values())), f"{where}: axes")
    for path, values in axes.items():
        plain = [value for value in values if isinstance(value, Hashable)]
        groups = [value for value in values if not isinstance(value, Hashable)]
        if len(set(plain)) < len(plain) or any(groups.count(group) > 1 for group in groups):
            raise ConfigError(f"{where}: axes: '{path}' lists a value twice")
    for values in itertools.product(*axes.values()):
        raw: dict[str, Any] = {k: copy.deepcopy(v) for k, v in arm.items() if k != "axes"}
        point = dict(zip(axes, values, strict=True))
        for path, value in point.items():
            if (first := path.partition(".")[0]) not in _SETTINGS:
                hint = nearest(first, _SETTINGS)
                raise ConfigError(f"{where}: axes: an arm has no setting '{path}'{hint}")
            put(raw, path, value, where=f"{where}: axes: '{path}'")
        yield point, raw


def _described(point: Mapping[str, Any]) -> str:
    settings = ", ".join(f"{path} = {value}" for path, value in point.items())
    return f" ({settings})" if settings else ""


def _spend(raw: dict[str, Any], where: str) -> dict[str, Any]:
    """Return an arm with a number of steps in each phase."""
    budget = raw.pop("steps", None)
    phases = raw.get("phases", [])
    if budget is None:
        if _has_shares(raw):
            raise ConfigError(f"{where}: 'share' requires 'steps' next to 'phases'")
        return raw
    budget = parse_config(_Budget, {"steps": budget}, where=where).steps or 0
    if not isinstance(phases, list) or not all(isinstance(phase, Mapping) for phase in phases):
        raise ConfigError(f"{where}: phases: expected a list of phases")
    steps = [_own_steps(phase, budget, f"{where}: phases.{n}") for n, phase in enumerate(phases)]
    left = budget - sum(number or 0 for number in steps)
    if left < 0 or (left and None not in steps) or steps.count(None) > 1:
        raise ConfigError(
            f"{where}: the phases take {budget - left:,} of {budget:,} steps; give steps or shares "
            "that add up, or omit both in one phase, which then takes the rest"
        )
    spent = [
        {**{k: v for k, v in phase.items() if k != "share"}, "steps": number}
        for phase, number in zip(phases, (left if s is None else s for s in steps), strict=True)
    ]
    return {**raw, "phases": [phase for phase in spent if phase["steps"]]}


def _own_steps(phase: Mapping[str, Any], budget: int, where: str) -> int | None:
    if "share" in phase and "steps" in phase:
        raise ConfigError(f"{where}: give 'steps' or a 'share', not both")
    value = phase.get("share", phase.get("steps"))
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf or ("steps" in phase and value != int(value)):
        raise ConfigError(f"{where}: expected a number of steps or a share (got {value})")
    if "steps" in phase:
        return int(value)
    if value > 1:
        raise ConfigError(f"{where}.share: expected at most 1 (got {value})")
    return round(value * budget)


def _name(raw: Mapping[str, Any], shared: RecipeConfig | None, where: str) -> str:
    single = parse_config(ArmConfig, {**raw, "name": _UNNAMED}, where=where)
    if shared is None:
        return _UNNAMED
    if single.encoder is not None:
        name = name_for_files(model_name(single.encoder))
    else:
        name = arm_name(single.recipe_from(shared, where=where), shared)
    return f"{name}-{single.attention}" if single.attention else name
