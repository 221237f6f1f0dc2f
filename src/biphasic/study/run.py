"""Run a study: what is missing, in order of need, and the report."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from biphasic.analysis.report import write_report
from biphasic.data.build_display import say_on
from biphasic.files import digest, exclusive_folder, is_complete, read_json, write_json
from biphasic.study.config import StudyConfig
from biphasic.study.jobs import FinetuneJob, Job, TrainJob
from biphasic.study.plan import (
    FinetuneGroup,
    Plan,
    check_inputs,
    check_tasks,
    finetune_job,
    missing_runs,
    missing_segments,
    plan_study,
)
from biphasic.study.prepare import DataPaths, locate_corpus, prepare_corpus
from biphasic.study.schedule import run_jobs
from biphasic.study.task_inputs import PlannedTask, TaskLocator
from biphasic.study.training_plan import PlannedPoint, Segment
from biphasic.training.data import TrainingData
from biphasic.training.environment import environment

DEFAULT_ROOT = "runs"
STORE = "store"
_STUDY_FORMAT = "biphasic.study/1"


@dataclass(frozen=True)
class StudyOutcome:
    """What a call to `run_study` did.

    Attributes:
        folder: The study's folder.
        report: The report, `report.html`.
        num_executed: Jobs that ran.
        failures: One line per job that failed; jobs that needed it were not tried.
    """

    folder: Path
    report: Path
    num_executed: int
    failures: tuple[str, ...]


def execute_study(
    config: StudyConfig,
    *,
    root: Path,
    num_workers: int | None = None,
    num_threads: int = 1,
    console: Console,
) -> StudyOutcome:
    """Do all that a study still lacks, and write its report.

    Args:
        config: The study.
        root: Folder for studies and for the store that they share.
        num_workers: Jobs at once; as many as cores allow when None.
        num_threads: Threads per job.
        console: Where progress is shown.

    Raises:
        LockedError: Another process is running this study.
        ConfigError: The study cannot be run as written.
    """
    folder, store = root.resolve() / config.name, root.resolve() / STORE
    with study_lock(folder):
        # Before the tasks, which take time: a source that is missing is known at once.
        corpus = locate_corpus(config.corpus, store)
        tasks = locate_tasks(config, store, say=say_on(console))
        paths = prepare_corpus(config.corpus, corpus, store, console=console)
        paths = paths.extended(map(config.recipe_of, config.arms))
        data = paths.open()
        plan = plan_study(config, data.ground, tasks)
        check_tasks(plan.tasks, data.tokenizer)
        check_inputs(plan, store)
        jobs, needs = _jobs(plan, config, paths, store, folder)
        failures: tuple[str, ...] = ()
        if jobs:
            workers = num_workers or default_workers(num_threads)
            failures = run_jobs(
                jobs,
                needs,
                console=console,
                log_folder=folder / "logs",
                num_workers=workers,
                num_threads=num_threads,
            )
        record = study_record(config, plan, data, origin=paths.origin(), store=store)
        report = _up_to_date_report(record, plan, folder, store)
    return StudyOutcome(folder, report, num_executed=len(jobs), failures=failures)


def locate_tasks(
    config: StudyConfig, store: Path, *, say: Callable[[str], None]
) -> tuple[PlannedTask, ...]:
    """Find a study's tasks, and make those that are not in the store yet.

    Raises:
        DataError: A task's data are missing, damaged, or cannot be used.
    """
    locator = TaskLocator(
        store=store,
        libraries=config.corpus.libraries,
        protocol_of=config.protocol_of,
        is_paper=config.finetuning.is_paper,
        say=say,
    )
    return locator.plan(config.tasks)


def study_lock(folder: Path) -> AbstractContextManager[None]:
    """Hold a study's folder for this process.

    Raises:
        LockedError: Another process holds it.
    """
    return exclusive_folder(folder, doing="running this study", otherwise="use another --root")


def _up_to_date_report(record: dict[str, Any], plan: Plan, folder: Path, store: Path) -> Path:
    """Write `study.json` and the report, or leave them where they say the same already.

    What they were made from is noted last: an interrupted call, and a study file that changed
    without a job to run, leave no stale report behind.
    """
    missing = [segment.id for segment in missing_segments(plan, store)]
    missing += [run.id for group in plan.groups for run in missing_runs(group, store)]
    provenance = {key: part for key, part in record["provenance"].items() if key != "environment"}
    made_from = digest({"study": {**record, "provenance": provenance}, "missing": missing})
    report, note = folder / "report" / "report.html", folder / "report" / "made-from.json"
    if report.is_file() and note.is_file() and read_json(note) == {"sha256": made_from}:
        return report
    write_json(folder / "study.json", record)
    report = write_report(folder, store)
    write_json(note, {"sha256": made_from})
    return report


def default_workers(num_threads: int = 1) -> int:
    """Return how many jobs to run at once: one on a GPU, else as many as cores allow."""
    return 1 if torch.cuda.is_available() else max((os.cpu_count() or 1) // num_threads, 1)


def study_record(
    config: StudyConfig, plan: Plan, data: TrainingData, *, origin: dict[str, Any], store: Path
) -> dict[str, Any]:
    """Return `study.json`: what was compared with what, for reports that need no torch."""
    runs = {
        (group.state, name): found for group in plan.groups for name, found in group.runs.items()
    }
    return {
        "format": _STUDY_FORMAT,
        "name": config.name,
        "title": config.title,
        "description": config.description,
        "convention": config.convention,
        "arms": [
            {
                "name": point.name,
                "label": point.label,
                "family": point.family,
                "state": point.state,
                "steps": point.step,
                "segments": _segments_of(point, plan, store),
            }
            for point in plan.points
        ],
        "tasks": [
            {
                "name": task.info.name,
                "kind": task.info.kind,
                "title": task.info.title,
                "metric": task.info.metric,
                **{f"num_{split}": count for split, count in task.num_examples.items()},
                "trained_on": None if task.trainer is None else task.trainer.info.name,
                "overlaps": dict(task.info.overlaps),
            }
            for task in plan.tasks
        ],
        "learning_rates": list(config.finetuning.learning_rates),
        "seeds": list(config.finetuning.seeds),
        "runs": [
            {
                "id": run.id,
                "arm": point.name,
                "task": task.info.name,
                "learning_rate": run.learning_rate,
                "seed": run.seed,
            }
            for point in plan.points
            for task in plan.tasks
            for run in runs[point.state, task.info.name]
        ],
        "heldout_sha256": data.heldout.content_hash,
        "provenance": _provenance(config, plan, data, origin),
    }


def _provenance(
    config: StudyConfig, plan: Plan, data: TrainingData, origin: dict[str, Any]
) -> dict[str, Any]:
    corpora = {"training corpus": data.corpus, "held-out corpus": data.heldout}
    return {
        "environment": environment(),
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
    }


def _segments_of(point: PlannedPoint, plan: Plan, store: Path) -> list[str]:
    """Return the segments that lead to a state: as they were trained, or else as planned."""
    planned = {segment.id: segment for segment in plan.segments}
    segments: list[str] = []
    current: str | None = point.state if point.step else None
    while current:
        segments.insert(0, current)
        folder = store / "states" / current
        if is_complete(folder):
            current = read_json(folder / "state.json")["parent"]
        else:
            current = planned[current].parent if current in planned else None
    return segments


def _jobs(
    plan: Plan, config: StudyConfig, paths: DataPaths, store: Path, folder: Path
) -> tuple[list[Job], dict[str, str | None]]:
    """Return the jobs that are missing, and the state that each waits for."""
    jobs: list[Job] = []
    needs: dict[str, str | None] = {}
    for segment in missing_segments(plan, store):
        jobs.append(_train_job(segment, config, paths, store, folder))
        needs[segment.id] = segment.parent
    for group in plan.groups:
        if missing_runs(group, store):
            jobs.append(_finetune_job(group, paths, store))
            needs[group.id] = group.state
    return jobs, needs


def _train_job(
    segment: Segment, config: StudyConfig, paths: DataPaths, store: Path, folder: Path
) -> TrainJob:
    return TrainJob(
        id=segment.id,
        label=segment.label,
        store=store,
        data=paths,
        recipe=segment.recipe,
        start=segment.start,
        end=segment.end,
        checkpoint_every=config.checkpoint_every,
        heldout_every=config.heldout_every,
        tensorboard=folder / "tensorboard" / segment.label.replace(" ", "-"),
        compute=config.compute,
    )


def _finetune_job(group: FinetuneGroup, paths: DataPaths, store: Path) -> FinetuneJob:
    return finetune_job(
        group, store=store, tokenizer=paths.tokenizer, encoder=store / "states" / group.state
    )
