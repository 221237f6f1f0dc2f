"""Evaluation of an encoder: fine-tune it over a grid of learning rates and seeds, and score it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean

import torch
from rich.console import Console

from biphasic.analysis.estimate import best_per_seed, estimate, grid
from biphasic.errors import StudyError
from biphasic.evaluation.plan import PlannedEvaluation
from biphasic.evaluation.result import Evaluation
from biphasic.execution.display import StudyDisplay
from biphasic.execution.executor import Work
from biphasic.execution.job import WorkItem
from biphasic.execution.local import Local, run_here
from biphasic.execution.scheduler import RetryPolicy, Scheduler
from biphasic.model.compute.device import compute_threads, computing_on, visible_devices
from biphasic.progress import progress_bar, say_on
from biphasic.records import Convention
from biphasic.store import RESULT, is_complete, read_result_record, result_folder
from biphasic.study.gc.pins import record_pin
from biphasic.study.inputs.tasks import PlannedTask, few_steps
from biphasic.study.jobs.finetune import FinetuneJob, GridRun
from biphasic.study.plan.baselines import compute_baselines
from biphasic.study.plan.finetuning import by_training
from biphasic.study.run.jobs import WORKER, load_job


def evaluate_plan(
    planned: PlannedEvaluation,
    *,
    convention: Convention,
    num_workers: int,
    num_threads: int,
    device: torch.device | None,
    console: Console,
) -> Iterator[Evaluation]:
    """Run the missing fine-tunings of a plan, and yield the evaluation of each task."""
    if note := few_steps(planned.tasks):
        say_on(console)(note)
    for evaluations in by_training(planned.tasks):
        group = planned.group(evaluations)
        results, name = planned.pinned(group), planned.name
        record_pin(planned.store, group.id, made_by="evaluate", name=name, results=results)
        if planned.missing(group, say=say_on(console)):
            with computing_on(device):
                run_finetunings(
                    planned.job(group),
                    num_workers=num_workers,
                    num_threads=num_threads,
                    console=console,
                )
        for task in evaluations:
            runs = group.runs[task.info.name]
            yield summarise(planned, task, runs, convention=convention, console=console)


def run_finetunings(
    job: FinetuneJob, *, num_workers: int, num_threads: int, console: Console
) -> None:
    """Run a job in this process, or its parts in several processes."""
    # Parts do not know each other's scores: when all are done, more runs may be due.
    before: list[int] = []
    while not job.is_done() and (due := job.due()) != before:
        _run_due(job, num_workers=num_workers, num_threads=num_threads, console=console)
        before = due


def _run_due(job: FinetuneJob, *, num_workers: int, num_threads: int, console: Console) -> None:
    parts = job.split(num_workers)
    if len(parts) == 1:
        with compute_threads(num_threads):
            run_here(job, console=console)
        return
    items = [_part(part) for part in parts]
    shared = len(parts) if visible_devices() else 1  # parts may share a GPU
    local = Local(workers=len(parts), threads=num_threads, per_gpu=shared)
    with StudyDisplay(console, items, num_slots=len(parts)) as display:
        work = Work(
            job.store,
            job.store.parent,
            load_job=load_job,
            worker=WORKER,
            processes=1,
            watch=display.progress,
            say=display.say,
        )
        with local.start(work) as executor:
            outcome = Scheduler(items, executor, policy=RetryPolicy(), watcher=display).run()
    if outcome.failures:
        raise StudyError(str(outcome.failures[0]))


def _part(job: FinetuneJob) -> WorkItem:
    return WorkItem(
        id=job.id,
        label=job.label,
        kind="finetune",
        needs=None,
        cost=0.0,
        num_slots=1,
        arms=(),
        make=lambda: job,
        is_done=job.is_done,
    )


def summarise(
    planned: PlannedEvaluation,
    task: PlannedTask,
    runs: Sequence[GridRun],
    *,
    convention: Convention,
    console: Console,
) -> Evaluation:
    """Read and verify the results of a task's runs, and estimate its score in percent points."""
    metric, folder = task.info.metric, planned.store / RESULT.place
    for run in runs:
        RESULT.open(folder / run.id, identity=run.id).verify()
    results = tuple(read_result_record(folder / run.id) for run in runs)
    selected = best_per_seed(grid(results, metric=metric))
    score = estimate([entry.test for entry in selected], convention=convention)
    return Evaluation(
        task=task.info,
        metric=metric,
        convention=convention,
        estimate=None if score is None else score.in_points,
        selected=tuple(entry.run for entry in selected),
        results=results,
        folder=folder,
        other_reading=planned.other_reading(task),
        baselines=_baselines(planned, task, console=console),
    )


def _baselines(
    planned: PlannedEvaluation, task: PlannedTask, *, console: Console
) -> dict[str, float]:
    """Compute the missing floors and references of a task; return their means on test."""
    every, scores = planned.baselines([task]), defaultdict[str, list[float]](list)
    folders = [result_folder(planned.store, one.id) for one in every]
    if not all(map(is_complete, folders)):
        with progress_bar(console, "computing floors and references"):
            compute_baselines(every, planned.store, planned.encoder.folder)
    for one, folder in zip(every, folders, strict=True):
        RESULT.open(folder, identity=one.id).verify()
        share = (read_result_record(folder).test or {}).get(task.info.metric)
        if share is not None:  # a plugin's metric may be of models alone
            scores[one.name].append(100 * share)
    return {name: fmean(of) for name, of in scores.items()}
