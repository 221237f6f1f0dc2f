"""The record of each evaluated state in `study.json`: the factors it was trained with."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from biphasic.model.loading.footprint import stored_parameters
from biphasic.objectives.masking.masking import MaskingConfig
from biphasic.records import ArmRecord, PhaseRecord
from biphasic.study.plan.cost import body_parameters
from biphasic.study.plan.training import PlannedPoint
from biphasic.study.spec.arms import family_of
from biphasic.study.spec.naming import model_name
from biphasic.training.recipe import PretrainedModel, Recipe
from biphasic.training.timeline import PlacedPhase


def arm_record(
    point: PlannedPoint, recipe: Recipe, *, segments: tuple[str, ...], vocab_size: int
) -> ArmRecord:
    """Return the record of one evaluated state, to which `segments` lead.

    `vocab_size` includes special tokens.
    """
    begun = [placed for placed in recipe.placed_phases if placed.start < point.step]
    changed = {name: value for name, value in point.arm.recipe.items() if name != "model"}
    continues, continued_steps = _continuation(recipe, begun, point.step)
    return ArmRecord(
        name=point.name,
        label=point.label,
        family=point.family,
        state=point.state,
        steps=point.step,
        segments=segments,
        arm=point.arm.name,
        is_final=point.is_final,
        group=point.arm.group,
        model=model_name(recipe.model),
        parameters=_parameters(recipe, vocab_size=vocab_size),
        phases=tuple(_phase_record(placed, min(point.step, placed.end)) for placed in begun),
        continues=continues,
        continued_steps=continued_steps,
        recipe=changed,
        seeds=recipe.seeds.model_dump(),
    )


def _phase_record(placed: PlacedPhase, end: int) -> PhaseRecord:
    """Describe a phase up to a step of the run."""
    first, last = (_mask_rate(placed, step) for step in (placed.start, end - 1))
    steps = Counter(placed.objective(step).objective for step in range(placed.start, end))
    return PhaseRecord(
        objective=placed.phase.objective,
        steps=end - placed.start,
        steps_by_objective=dict(steps),
        # Fields that do not apply are omitted from the file.
        **({} if first is None else {"mask_rate": first}),
        **({} if last == first else {"final_mask_rate": last}),
    )


def _mask_rate(placed: PlacedPhase, step: int) -> float | None:
    """Return the share of tokens that a step masks; None if the objective does not mask."""
    objective = placed.objective(step)
    return objective.mlm_probability if isinstance(objective, MaskingConfig) else None


def _continuation(recipe: Recipe, begun: list[PlacedPhase], step: int) -> tuple[str | None, int]:
    """Return the finished model that training continued from, and the number of steps since.

    A model is finished when its schedule has decayed and another one begins. If that happens
    more than once, the last one counts.
    """
    for before, placed in zip(reversed(begun[:-1]), reversed(begun[1:]), strict=True):
        if placed.schedule_start == placed.start and before.schedule.decay_steps:
            objectives = family_of([earlier.phase for earlier in begun[: placed.index]])
            return objectives, step - placed.start
    if isinstance(recipe.model, PretrainedModel):
        return model_name(recipe.model), step
    return None, 0


def _parameters(recipe: Recipe, *, vocab_size: int) -> int | None:
    """Count parameters; None for a pretrained model that is not on this machine."""
    if not isinstance(recipe.model, PretrainedModel):
        return body_parameters(recipe, vocab_size=vocab_size)
    folder = Path(recipe.model.pretrained)
    return stored_parameters(folder) if folder.is_dir() else None
