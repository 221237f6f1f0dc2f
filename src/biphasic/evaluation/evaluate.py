"""Evaluation of an encoder: fine-tune it over a grid of learning rates and seeds, and score it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from rich.console import Console

from biphasic.analysis.estimate import estimate
from biphasic.analysis.scores.selection import best_per_seed, grid
from biphasic.config import nearest
from biphasic.errors import ConfigError, StudyError
from biphasic.evaluation.plan import chosen_tasks, plan_evaluation
from biphasic.evaluation.result import Evaluation
from biphasic.execution.display import StudyDisplay
from biphasic.execution.executor import Work
from biphasic.execution.inline import run_here
from biphasic.execution.job import WorkItem
from biphasic.execution.local import Local
from biphasic.execution.scheduler import RetryPolicy, Scheduler
from biphasic.execution.slots import check_cores
from biphasic.files import verify_folder
from biphasic.model.compute.device import computing_on, parse_device
from biphasic.progress import progress_console, say_on
from biphasic.records import Convention
from biphasic.sealed import read_result_record
from biphasic.study import DEFAULT_ROOT
from biphasic.study.gc.pins import record_pin
from biphasic.study.inputs.tasks import PlannedTask
from biphasic.study.jobs.finetune import FinetuneJob, GridRun
from biphasic.study.plan.finetuning import by_training
from biphasic.study.run.jobs import WORKER, load_job
from biphasic.study.run.run import default_workers
from biphasic.study.spec.study import TaskConfig
from biphasic.tasks.protocol import FinetuneProtocol


def evaluate(
    model: Path | str,
    task: TaskConfig | Path | str,
    *,
    learning_rates: Sequence[float] | None = None,
    seeds: Sequence[int] | None = None,
    protocol: FinetuneProtocol | Mapping[str, Any] | Literal["paper"] | None = None,
    libraries: Sequence[str] | None = None,
    overrides: Iterable[str] = (),
    revision: str | None = None,
    copies: Path | str | None = None,
    convention: Convention = "standard",
    root: Path | str = DEFAULT_ROOT,
    workers: int | None = None,
    threads: int = 1,
    device: str | None = None,
    quiet: bool = False,
    console: Console | None = None,
) -> Evaluation:
    """Fine-tune an encoder on a task over a grid, and estimate its score.

    For each seed, the learning rate with the best validation score is selected; the estimate is the
    mean of the selected runs' test scores. Zero-shot tasks are scored once, without training.

    Args:
        model: Folder of a state or of a transformers model with a fast tokenizer, or a hub id.
        task: A built-in task, a published dataset, `KIND:PATH`, a task file or a task folder (see
            docs/tasks.md); or a `TaskConfig` to set a revision, local copies or a metric.
        learning_rates: Peak rates; the study's six when None.
        seeds: Seeds; the study's five when None.
        protocol: All other constants; the study's when None, those of its public code for
            `"paper"`. They override settings in the task's description. `max_seqlen` defaults to
            the model's maximum.
        libraries: Libraries whose documentation the built-in tasks use; all when None.
        overrides: Constants as `name=value`, such as `max_steps=200`; they override all others.
        revision: Revision of a model on the hub; the newest when None.
        copies: Folder with local copies of hub datasets, as `OWNER/NAME`.
        convention: How the interval is computed.
        root: Folder of the store.
        workers: Parallel fine-tunings, each in its own process; 1 runs them in this process.
            One per core, or one on a GPU, when None.
        threads: Threads per fine-tuning. Results may depend on it in the last bits.
        device: `cpu`, `cuda` or `cuda:N`; the first GPU, or else the CPU, when None. It is
            recorded in `result.json`.
        quiet: Show no progress.
        console: Console for progress; standard error when None.

    Raises:
        ConfigError: A setting is invalid.
        DataError: The model or the task is missing or damaged.
        ModelError: transformers cannot load the model, or it cannot be an encoder.

    Example:
        >>> from biphasic import evaluate
        >>> result = evaluate(state, "sc:reviews", learning_rates=[1e-3, 3e-3], seeds=[0, 1])
        >>> result.metric, result.estimate.num_seeds, len(result.results)
        ('accuracy', 2, 4)
    """
    [evaluation] = evaluate_all(
        model,
        [task],
        learning_rates=learning_rates,
        seeds=seeds,
        protocol=protocol,
        libraries=libraries,
        overrides=overrides,
        revision=revision,
        copies=copies,
        convention=convention,
        root=root,
        workers=workers,
        threads=threads,
        device=device,
        quiet=quiet,
        console=console,
    )
    return evaluation


def evaluate_all(
    model: Path | str,
    tasks: Sequence[TaskConfig | Path | str],
    *,
    learning_rates: Sequence[float] | None = None,
    seeds: Sequence[int] | None = None,
    protocol: FinetuneProtocol | Mapping[str, Any] | Literal["paper"] | None = None,
    libraries: Sequence[str] | None = None,
    overrides: Iterable[str] = (),
    revision: str | None = None,
    copies: Path | str | None = None,
    convention: Convention = "standard",
    root: Path | str = DEFAULT_ROOT,
    workers: int | None = None,
    threads: int = 1,
    device: str | None = None,
    quiet: bool = False,
    console: Console | None = None,
) -> Iterator[Evaluation]:
    """Evaluate an encoder on several tasks; all are checked before the first one runs.

    Tasks that are trained on the same task share its fine-tunings. Arguments and errors are those
    of `evaluate`. Each evaluation is yielded when it is finished.

    Example:
        >>> from biphasic import evaluate_all
        >>> grid = {"learning_rates": [1e-3], "seeds": [0, 1]}
        >>> [result.metric for result in evaluate_all(state, ["sc:reviews"], **grid)]
        ['accuracy']
    """
    workers = default_workers(threads, device=device) if workers is None else workers
    check_cores(num_workers=workers, num_threads=threads)
    if convention not in (known := get_args(Convention)):
        raise ConfigError(f"convention: unknown value '{convention}'{nearest(convention, known)}")
    chosen = parse_device(device)
    console = console or progress_console(quiet=quiet)
    planned = plan_evaluation(
        model,
        chosen_tasks(tasks, overrides=overrides, copies=copies),
        learning_rates=learning_rates,
        seeds=seeds,
        protocol=protocol,
        libraries=libraries,
        revision=revision,
        root=root,
        console=console,
    )
    for evaluations in by_training(planned.tasks):
        group = planned.group(evaluations)
        record_pin(planned.store, group.id, made_by="evaluate", results=group.run_ids())
        if planned.missing(group, say=say_on(console)):
            with computing_on(chosen):
                run_finetunings(
                    planned.job(group),
                    num_workers=workers,
                    num_threads=threads,
                    console=console,
                )
        for task in evaluations:
            runs = group.runs[task.info.name]
            yield summarise(task, runs, planned.store, convention=convention)


def run_finetunings(
    job: FinetuneJob, *, num_workers: int, num_threads: int, console: Console
) -> None:
    """Run a job in this process, or its parts in several processes."""
    parts = job.split(num_workers)
    if len(parts) == 1:
        with compute_threads(num_threads):
            run_here(job, console=console)
        return
    items = [_part(part) for part in parts]
    local = Local(workers=len(parts), threads=num_threads, per_gpu=len(parts))
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


@contextmanager
def compute_threads(number: int) -> Iterator[None]:
    """Set the number of compute threads within the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def summarise(
    task: PlannedTask, runs: Sequence[GridRun], store: Path, *, convention: Convention
) -> Evaluation:
    """Read and verify the results of a task's runs, and estimate its score in percent points."""
    metric, folder = task.info.metric, store / "finetunes"
    for run in runs:
        verify_folder(folder / run.id, remedy="delete this folder and run again", identity=run.id)
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
    )
