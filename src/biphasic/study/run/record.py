"""`study.json`: arms, tasks and runs of a study, for reports without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from biphasic.files import digest, is_complete
from biphasic.records import RunRecord, StudyRecord, TaskRecord
from biphasic.study.plan.plan import Plan
from biphasic.study.plan.training import PlannedPoint, Segment
from biphasic.study.run.arm_record import arm_record
from biphasic.study.spec.study import StudyConfig
from biphasic.training.data import TrainingData
from biphasic.training.state import read_state_record


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
            )
            for task in plan.tasks
        ),
        learning_rates=config.finetuning.learning_rates,
        seeds=config.finetuning.seeds,
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
    """Return the segments that lead to a state, as trained or else as planned.

    Raises:
        CheckpointError: A state's record is damaged.
    """
    segments: list[str] = []
    current: str | None = point.state if point.step else None
    while current:
        segments.insert(0, current)
        folder = store / "states" / current
        if is_complete(folder):
            current = read_state_record(folder).parent
        else:
            current = planned[current].parent if current in planned else None
    return segments
