"""The best fine-tuned model of a grid, with its weights."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from rich.console import Console

from biphasic.amounts import count, rate, rough_duration, size
from biphasic.analysis.estimate import grid
from biphasic.errors import TrainingError
from biphasic.evaluation.evaluate import Evaluation, run_finetunings, summarise
from biphasic.evaluation.plan import PlannedEvaluation
from biphasic.execution.display import job_bar
from biphasic.model.compute.device import compute_threads
from biphasic.model.loading.build import empty_body
from biphasic.model.matrices import matrix_weights
from biphasic.progress import say_on
from biphasic.records import ResultRecord
from biphasic.study import EXAMPLE_TOKENS
from biphasic.study.gc.pins import record_pin
from biphasic.study.inputs.tasks import PlannedTask, few_steps
from biphasic.study.jobs.finetune import FinetuneJob, GridRun
from biphasic.study.jobs.keep import KeptModel, find_kept, keep_best
from biphasic.study.plan.cost import run_flops
from biphasic.study.sizing.speed import measure_speed, precision_advice
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.protocol import FinetuneProtocol

LEARNING_RATES = (2e-5, 5e-5, 1e-4, 2e-4)  # default rates: the inner four of the study's six
SEEDS = (0,)
# Default protocol: up to three epochs instead of the study's one, for small data sets.
PROTOCOL = FinetuneProtocol(max_epochs=3)


def finetune_grid(
    plan: PlannedEvaluation, *, scratch: Path, num_workers: int, num_threads: int, console: Console
) -> tuple[Evaluation, KeptModel]:
    """Run the missing fine-tunings of one task, and return scores and best model of the grid."""
    # The best weights are kept while the grid runs. Earlier runs have only scores: if the best is
    # one of them, it is repeated, which gives the same weights. The caller deletes `scratch`.
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
            f"the best run (rate {rate(chosen.learning_rate)}, seed {chosen.seed}) is of an "
            "earlier call, which did not keep its weights; repeating it"
        )
        group = plan.group((task,))
        job = plan.job(group)
        run = next(run for run in group.runs[task.info.name] if run.id == chosen.id)
        kept = _refit(job, run, scratch=scratch / "again", threads=num_threads, console=console)
        if difference := _difference(kept, chosen):
            say(difference)
    return evaluation, kept


def score_grid(
    plan: PlannedEvaluation,
    *,
    scratch: Path | None,
    num_workers: int,
    num_threads: int,
    console: Console,
) -> Evaluation:
    """Run the missing fine-tunings of one task, and keep weights if there is `scratch`."""
    [task] = plan.tasks
    group = plan.group((task,))
    record_pin(plan.store, group.id, made_by="finetune", results=plan.pinned(group))
    say, missing = say_on(console), plan.missing(group, say=say_on(console))
    say(announcement(task, num_runs=len(group.runs[task.info.name]), num_missing=len(missing)))
    if missing and group.beyond:
        say(
            f"up to {len(group.beyond):,} more follow beyond the grid, while validation chooses an "
            "end (--extend 0: none)"
        )
    if note := few_steps(plan.tasks):
        say(note)
    if missing:
        if task.training.is_trained and not task.training.protocol.is_probe:
            with compute_threads(num_threads):
                say(expected_time(plan, len(missing), num_workers=num_workers))
        job = plan.job(group).model_copy(update={"keep": scratch})
        run_finetunings(job, num_workers=num_workers, num_threads=num_threads, console=console)
    runs = group.runs[task.info.name]
    return summarise(plan, task, runs, convention="standard", console=console)


def announcement(task: PlannedTask, *, num_runs: int, num_missing: int) -> str:
    """Describe the runs of a grid: their number, steps, and passes over the training data."""
    training = task.training
    if not training.is_trained:
        return f"{task.info.name}: zero-shot; the encoder is scored without training"
    protocol = training.protocol
    if protocol.is_probe:
        return f"{task.info.name}: a linear model is fitted on the states of the frozen encoder"
    num_read = protocol.num_read(training.epoch or 0)
    noun = KINDS[training.info.kind].facts.trained_unit
    steps = protocol.num_steps(num_read)
    passes = steps / math.ceil(num_read / protocol.batch_size)
    times = "once" if 0.95 <= passes < 1.05 else f"{passes:.2g} times"
    text = (
        f"{task.info.name}: {count(num_runs, 'run')}, {num_runs - num_missing} of them finished; "
        f"each has about {steps:,} steps of {protocol.batch_size} and reads {num_read:,} {noun} "
        f"{times}"
    )
    if steps == protocol.max_steps:
        text += f"; limited by max_steps={steps} (--set max_steps=...)"
    return text


def expected_time(plan: PlannedEvaluation, num_runs: int, *, num_workers: int) -> str:
    """Say how long runs of a grid take here at most, from a second of measurement."""
    training = plan.tasks[0].training
    precision = "fp32" if training.protocol.precision == "fp32" else "bf16"
    model = empty_body(plan.encoder.folder)
    body = matrix_weights(model, model.config)
    weights = 4 * sum(each.numel() for each in model.parameters())  # in fp32
    flops = run_flops(body, training, EXAMPLE_TOKENS)
    rounds = math.ceil(num_runs / num_workers)  # of runs at once
    speed = measure_speed(precision)
    length = min(EXAMPLE_TOKENS, training.protocol.max_seqlen)
    time = (
        f"about {rough_duration(rounds * flops / speed.per_second)} on this machine, measured for "
        f"a second, if texts have {length} tokens, less if they are shorter; scoring is not "
        # Weights, gradients and two moments.
        f"counted; at least {size(4 * weights)} of memory for each run, and {size(weights)} on disk"
    )
    return "; ".join(filter(None, (time, precision_advice(precision, speed))))


def best_result(results: Iterable[ResultRecord], *, metric: str) -> ResultRecord | None:
    """Return the run with the best validation score; None if all diverged."""
    # Ties go to the smaller rate, then to the smaller seed.
    runs = grid(results, metric=metric)
    best = min(runs, key=lambda run: (-run.validation, run.rate, run.seed), default=None)
    return best and best.run


def _refit(
    job: FinetuneJob, run: GridRun, *, scratch: Path, threads: int, console: Console
) -> KeptModel:
    with job_bar(console, job.label) as report, compute_threads(threads):
        job.refit(run, report, keep=partial(keep_best, scratch))
    kept = find_kept(scratch.parent, learning_rate=run.learning_rate, seed=run.seed)
    if kept is None:
        raise TrainingError(
            f"{job.label}: the run diverged, but it did not before; the machine or its libraries "
            "have changed: run with another --root to repeat the whole grid"
        )
    return kept


def _difference(kept: KeptModel, chosen: ResultRecord) -> str | None:
    """Return a warning if a repeated run has other scores than before."""
    before = {"validation": chosen.validation, "test": chosen.test}
    if all(kept.metrics.get(split) == metrics for split, metrics in before.items() if metrics):
        return None
    now = kept.metrics.get("test", {}).get(chosen.metric)
    was = (chosen.test or {}).get(chosen.metric)
    return (
        f"the repeated run has other scores (test {chosen.metric} {now}, before {was}): machine, "
        "libraries or number of threads have changed; the folder has the new scores"
    )
