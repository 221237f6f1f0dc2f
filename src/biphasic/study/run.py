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
from biphasic.files import digest, exclusive_folder, read_json, write_json
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
from biphasic.study.record import study_record
from biphasic.study.schedule import run_jobs
from biphasic.study.task_inputs import PlannedTask, TaskLocator
from biphasic.study.training_plan import Segment

DEFAULT_ROOT = "runs"
STORE = "store"


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
