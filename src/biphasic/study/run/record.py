"""`study.json`: arms, tasks and runs of a study, for reports without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from biphasic.facts import facts_to_record
from biphasic.files import digest, is_complete
from biphasic.model.loading.footprint import stored_parameters
from biphasic.objectives.masking import MaskingConfig
from biphasic.records import (
    AgainstRecord,
    ArmRecord,
    AskedRecord,
    CompareRecord,
    ForecastRecord,
    PhaseRecord,
    QuestionRecord,
    RunRecord,
    StudyRecord,
    SupportRecord,
    TaskRecord,
)
from biphasic.study.plan.cost import parameters_of
from biphasic.study.plan.plan import Plan, PlannedPoint, Segment
from biphasic.study.spec.arms import family_of
from biphasic.study.spec.naming import model_name
from biphasic.study.spec.questions import AskedArms, Question
from biphasic.study.spec.study import StudyConfig
from biphasic.tasks.kinds.registry import KINDS
from biphasic.training.data import TrainingData
from biphasic.training.recipe import PretrainedModel, Recipe
from biphasic.training.state import read_state_record
from biphasic.training.timeline import PlacedPhase


def study_record(
    config: StudyConfig, plan: Plan, data: TrainingData, *, origin: dict[str, Any], store: Path
) -> StudyRecord:
    """Return `study.json` without `provenance.environment`, which the writer adds.

    Reading the hardware requires torch, and an up-to-date report is not rewritten.
    """
    runs = {
        (group.state, name): task_runs
        for group in plan.groups
        for name, task_runs in group.runs.items()
    }
    planned = {segment.id: segment for segment in plan.segments}
    return StudyRecord(
        format="biphasic.study/1",
        name=config.name,
        title=config.title,
        description=config.description,
        convention=config.convention,
        arms=tuple(
            arm_record(
                point,
                config.recipe_of(point.arm),
                segments=tuple(_segments_of(point, planned, store)),
                vocab_size=data.tokenizer.vocab_size,
                is_tuned=config.is_tuned(point.arm),
            )
            for point in plan.points
        ),
        tasks=tuple(
            TaskRecord(
                name=task.info.name,
                kind=task.info.kind,
                title=task.info.title,
                metric=task.info.metric,
                num_train=task.num_examples["train"],
                num_validation=task.num_examples["validation"],
                num_test=task.num_examples["test"],
                trained_on=None if task.trainer is None else task.trainer.info.name,
                overlaps=dict(task.info.overlaps),
                about=facts_to_record(task.info.kind, KINDS[task.info.kind].facts),
            )
            for task in plan.tasks
        ),
        learning_rates=config.finetuning.learning_rates,
        seeds=config.finetuning.seeds_of(config.recipe_of(config.arms[0]).seeds),
        compare=tuple(
            CompareRecord(
                first=first,
                second=second,
                tasks=planned.tasks or tuple(task.info.name for task in plan.tasks),
            )
            for planned, (first, second) in zip(config.compare, config.compared(), strict=True)
        ),
        questions=tuple(
            _question_record(question, arms, tuple(task.info.name for task in plan.tasks))
            for question, arms in zip(config.questions, config.asked(), strict=True)
        ),
        runs=tuple(
            RunRecord(
                id=run.id,
                arm=point.name,
                task=task.info.name,
                learning_rate=run.learning_rate,
                seed=run.seed,
            )
            for point in plan.points
            for task in plan.tasks
            for run in runs[point.state, task.info.name]
        ),
        heldout_sha256=data.heldout.content_hash,
        provenance=_provenance(config, plan, data, origin),
    )


def _question_record(
    question: Question, arms: Sequence[AskedArms], tasks: tuple[str, ...]
) -> QuestionRecord:
    return QuestionRecord(
        name=question.name,
        question=question.question,
        comparisons=tuple(
            AskedRecord(
                first=of.arms[0],
                second=of.arms[1],
                tasks=asked.tasks or tasks,
                minus=of.minus,
                forecast=None
                if asked.forecast is None
                else ForecastRecord(**asked.forecast.model_dump()),
            )
            for asked, of in zip(question.comparisons, arms, strict=True)
        ),
        supported_if=SupportRecord(**question.supported_if.model_dump()),
        against_if=AgainstRecord(**question.counts_against_if.model_dump()),
    )


def _provenance(
    config: StudyConfig, plan: Plan, data: TrainingData, origin: dict[str, Any]
) -> dict[str, Any]:
    corpora = {"training corpus": data.corpus, "held-out corpus": data.heldout}
    return {
        "data": {
            **{
                name: {
                    "documents": len(corpus),
                    "tokens": corpus.num_tokens,
                    "content hash": corpus.content_hash,
                }
                for name, corpus in corpora.items()
            },
            "tokenizer": {"vocabulary": data.tokenizer.vocab_size, "hash": data.tokenizer.sha256},
            "tasks": {task.info.name: task.info.sha256 for task in plan.tasks},
            "origin": origin,
        },
        "recipe": config.recipe.model_dump(mode="json"),
        "finetuning": config.finetuning.model_dump(mode="json"),
        "settings_sha256": settings_digest(config),
    }


def settings_digest(config: StudyConfig) -> str:
    """Return the digest of all settings of a study."""
    return digest(config.model_dump(mode="json"))


def _segments_of(point: PlannedPoint, planned: Mapping[str, Segment], store: Path) -> list[str]:
    """Return the segments that lead to a state, as trained or else as planned."""
    segments: list[str] = []
    current: str | None = point.state if point.step else None
    while current:
        segments.insert(0, current)
        folder = store / "states" / current
        if is_complete(folder):
            current = read_state_record(folder, identity=current).parent
        else:
            current = planned[current].parent if current in planned else None
    return segments


def arm_record(
    point: PlannedPoint,
    recipe: Recipe,
    *,
    segments: tuple[str, ...],
    vocab_size: int,
    is_tuned: bool = False,
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
        peak=begun[0].schedule.peak if begun else None,
        is_tuned=is_tuned,
    )


def _phase_record(placed: PlacedPhase, end: int) -> PhaseRecord:
    """Describe a phase up to a step of the run."""
    first, last = (_mask_rate(placed, step) for step in (placed.start, end - 1))
    steps = Counter(placed.objective(step).short_name for step in range(placed.start, end))
    return PhaseRecord(
        objective=placed.phase.short_name,
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
    """Count parameters without the head; None for a pretrained model that is not here."""
    if isinstance(recipe.model, PretrainedModel):
        folder = Path(recipe.model.pretrained)
        return stored_parameters(folder) if folder.is_dir() else None
    counted = parameters_of(recipe, vocab_size=vocab_size)
    return None if counted is None else counted.body + counted.embeddings
