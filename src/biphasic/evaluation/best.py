"""A fine-tuned encoder to keep: the best of a grid, with its weights."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from biphasic.analysis.scores.selection import best_run, grid_score
from biphasic.errors import TrainingError
from biphasic.evaluation.evaluate import Evaluation, compute_threads, run_finetunings, summarise
from biphasic.evaluation.plan import PlannedEvaluation
from biphasic.execution.display import job_bar
from biphasic.progress import say_on
from biphasic.records import ZERO_SHOT, ResultRecord
from biphasic.study.gc.pins import record_pin
from biphasic.study.inputs.tasks import PlannedTask
from biphasic.study.jobs.finetune import FinetuneJob, GridRun
from biphasic.study.jobs.keep import BestModel, KeptModel, find_kept
from biphasic.study.plan.finished import missing_runs
from biphasic.tasks.protocol import FinetuneProtocol

LEARNING_RATES = (2e-5, 5e-5, 1e-4, 2e-4)
"""Rates that are tried unless others are asked for: the inner ones of the study's six."""
SEEDS = (0,)
PROTOCOL = FinetuneProtocol(max_epochs=3)
"""Where nothing else is said: a small data set is read three times, not once as in the study."""


@dataclass(frozen=True)
class GridModel:
    """The best fine-tuning of a grid.

    Attributes:
        plan: What was fine-tuned on what.
        evaluation: The scores of the whole grid.
        kept: The model with the best validation score.
    """

    plan: PlannedEvaluation
    evaluation: Evaluation
    kept: KeptModel

    @property
    def task(self) -> PlannedTask:
        """The task that decided."""
        return self.plan.tasks[0]


def finetune_grid(
    plan: PlannedEvaluation,
    *,
    scratch: Path,
    num_workers: int,
    num_threads: int,
    console: Console,
) -> GridModel:
    """Do the fine-tunings of one task that have no result yet, and return the best of all.

    Weights are kept while the grid runs. A run that was finished earlier has scores only; if it is
    the best, it is done once more, which gives the same weights.

    Args:
        plan: With one task.
        scratch: Folder for weights; whoever made it removes it.
        num_workers: Fine-tunings at once.
        num_threads: Threads per fine-tuning.
        console: Where progress is shown.

    Raises:
        TrainingError: Every run diverged.
    """
    say = say_on(console)
    [task] = plan.tasks
    evaluation = score_grid(
        plan, scratch=scratch, num_workers=num_workers, num_threads=num_threads, console=console
    )
    chosen = best_result(evaluation.results, metric=task.info.metric)
    if chosen is None:
        raise TrainingError(f"{task.info.name}: every run diverged; lower the learning rate")
    kept = find_kept(scratch, learning_rate=chosen.learning_rate, seed=chosen.seed)
    if kept is None:
        say(
            f"the best run (rate {chosen.learning_rate:g}, seed {chosen.seed}) was finished "
            "earlier, when its weights were not kept: it is done once more"
        )
        group = plan.group((task,))
        job = plan.job(group)
        run = next(run for run in group.runs[task.info.name] if run.id == chosen.id)
        kept = _refit(job, run, scratch=scratch / "again", threads=num_threads, console=console)
        if told := _difference(kept, chosen):
            say(told)
    return GridModel(plan, evaluation, kept)


def score_grid(
    plan: PlannedEvaluation,
    *,
    scratch: Path | None,
    num_workers: int,
    num_threads: int,
    console: Console,
) -> Evaluation:
    """Do the fine-tunings of one task that have no result yet, and return the scores of all.

    Arguments as in `finetune_grid`; without `scratch` no weights are kept.
    """
    [task] = plan.tasks
    group = plan.group((task,))
    record_pin(plan.store, group.id, made_by="finetune", results=group.run_ids())
    runs, missing = group.runs[task.info.name], missing_runs(group, plan.store)
    say_on(console)(announcement(task, num_runs=len(runs), num_missing=len(missing)))
    if missing:
        job = plan.job(group).model_copy(update={"keep": scratch})
        run_finetunings(job, num_workers=num_workers, num_threads=num_threads, console=console)
    return summarise(task, runs, plan.store, convention="standard")


def announcement(task: PlannedTask, *, num_runs: int, num_missing: int) -> str:
    """Say what is about to be done, and what of the training data a run will not see."""
    training = task.training
    if training.info.kind == ZERO_SHOT:
        return f"{task.info.name}: nothing is trained; the encoder is scored as it is"
    protocol, num_train = training.protocol, training.epoch or 0
    what = "pairs of query and document" if training.info.kind == "ir" else "examples"
    steps = protocol.num_steps(num_train)
    told = (
        f"{task.info.name}: {_runs(num_runs)}, {num_runs - num_missing} of them done before; each "
        f"of about {steps:,} steps of {protocol.batch_size}, {num_train:,} {what} read "
        f"{_times(steps / math.ceil(num_train / protocol.batch_size))}"
    )
    if steps == protocol.max_steps:
        told += f"; max_steps={steps} ends it (--set max_steps=...)"
    return told


def _runs(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"


def _times(passes: float) -> str:
    return "once" if 0.95 <= passes < 1.05 else f"{passes:.2g} times"


def best_result(results: Iterable[ResultRecord], *, metric: str) -> ResultRecord | None:
    """Return the run with the best validation score; None where all diverged."""
    scores = (grid_score(result, result, metric=metric) for result in results)
    return best_run(score for score in scores if score is not None)


def _refit(
    job: FinetuneJob, run: GridRun, *, scratch: Path, threads: int, console: Console
) -> KeptModel:
    with job_bar(console, job.label) as report, compute_threads(threads):
        job.refit(run, report, keep=BestModel(scratch).offer)
    kept = find_kept(scratch.parent, learning_rate=run.learning_rate, seed=run.seed)
    if kept is None:
        raise TrainingError(
            f"{job.label}: the run diverged, and it did not before; the machine or its libraries "
            "are others now: run with another --root to try the whole grid again"
        )
    return kept


def _difference(kept: KeptModel, chosen: ResultRecord) -> str | None:
    """Say so if a run that was done again has other scores than before."""
    before = {"validation": chosen.validation, "test": chosen.test}
    if all(kept.metrics.get(split) == metrics for split, metrics in before.items() if metrics):
        return None
    now = kept.metrics.get("test", {}).get(chosen.metric)
    was = (chosen.test or {}).get(chosen.metric)
    return (
        f"done again, the run has other scores (test {chosen.metric} {now}, before {was}): another "
        "machine, other libraries or another number of threads; the folder has those of this time"
    )
