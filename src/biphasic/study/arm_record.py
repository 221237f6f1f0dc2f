"""What `study.json` says of each evaluated state: the factors that it came about by."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from biphasic.model.footprint import stored_parameters
from biphasic.objectives.masking import MaskingConfig
from biphasic.study.arms import family_of
from biphasic.study.cost import body_parameters
from biphasic.study.naming import model_name
from biphasic.study.training_plan import PlannedPoint
from biphasic.training.recipe import PretrainedModel, Recipe
from biphasic.training.timeline import PlacedPhase


def arm_record(point: PlannedPoint, recipe: Recipe, *, vocab_size: int) -> dict[str, Any]:
    """Return the factors of one point, as `ArmRecord` has them, identity and segments aside.

    Args:
        point: The end of an arm, or a step on its way.
        recipe: The arm's.
        vocab_size: Of the tokenizer, special tokens included.
    """
    begun = [placed for placed in recipe.placed_phases if placed.start < point.step]
    changed = {name: value for name, value in point.arm.recipe.items() if name != "model"}
    return {
        "arm": point.arm.name,
        "is_final": point.is_final,
        "group": point.arm.group,
        "model": model_name(recipe.model),
        "parameters": _parameters(recipe, vocab_size=vocab_size),
        "phases": [_phase_record(placed, min(point.step, placed.end)) for placed in begun],
        **_continuation(recipe, begun, point.step),
        "recipe": changed,
        "seeds": recipe.seeds.model_dump(),
    }


def _phase_record(placed: PlacedPhase, end: int) -> dict[str, Any]:
    """Describe a phase up to a step of the run."""
    record: dict[str, Any] = {
        "objective": placed.phase.objective,
        "steps": end - placed.start,
        "steps_by_objective": dict(
            Counter(placed.objective(step).objective for step in range(placed.start, end))
        ),
    }
    rates = [_mask_rate(placed, step) for step in (placed.start, end - 1)]
    if rates[0] is not None:
        record["mask_rate"] = rates[0]
    if rates[1] != rates[0]:
        record["final_mask_rate"] = rates[1]
    return record


def _mask_rate(placed: PlacedPhase, step: int) -> float | None:
    """Return the share of tokens that a step masks; None where the objective does not mask."""
    objective = placed.objective(step)
    return objective.mlm_probability if isinstance(objective, MaskingConfig) else None


def _continuation(recipe: Recipe, begun: list[PlacedPhase], step: int) -> dict[str, Any]:
    """Say which finished model training went on from, and for how long.

    A model is finished where its schedule has decayed and another one begins. Where that happens
    more than once, the last counts.
    """
    for before, placed in zip(reversed(begun[:-1]), reversed(begun[1:]), strict=True):
        if placed.schedule_start == placed.start and before.schedule.decay_steps:
            objectives = family_of([each.phase for each in begun[: placed.index]])
            return {"continues": objectives, "continued_steps": step - placed.start}
    if isinstance(recipe.model, PretrainedModel):
        return {"continues": model_name(recipe.model), "continued_steps": step}
    return {"continues": None, "continued_steps": 0}


def _parameters(recipe: Recipe, *, vocab_size: int) -> int | None:
    """Count parameters; None of a finished model that is not on this machine."""
    if not isinstance(recipe.model, PretrainedModel):
        return body_parameters(recipe, vocab_size=vocab_size)
    folder = Path(recipe.model.pretrained)
    return stored_parameters(folder) if folder.is_dir() else None
