"""Automatic names of arms: `610m-clm-10k-mlm40-42k`.

A name has the model, then each objective with the step at its end, then other differences from
the study's recipe. `dec42k` marks a step at which a schedule has decayed and another one begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from biphasic.amounts import thousands
from biphasic.model.shape import Architecture
from biphasic.study.spec.arms import RecipeConfig
from biphasic.training.recipe import PretrainedModel, Recipe, Seeds
from biphasic.training.timeline import PlacedPhase


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
    return _for_files("-".join([*parts, *_differences(recipe, shared)]))


def encoder_name(encoder: PretrainedModel) -> str:
    """Return the name of an arm that is a finished encoder: `all-minilm-l6-v2`."""
    return _for_files(model_name(encoder))


def _for_files(name: str) -> str:
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
    if phase.corpus:
        parts.append(phase.corpus.name)
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
