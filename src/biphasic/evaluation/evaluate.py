"""Evaluation and fine-tuning of an encoder: a study in memory, whose only arm is the encoder."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch
from rich.console import Console

from biphasic.amounts import rate
from biphasic.analysis.estimate import best_per_seed, estimate, grid
from biphasic.config import NAME_PATTERN, nearest, parse_config, parse_overrides
from biphasic.errors import ConfigError, DataError, StudyError, TrainingError
from biphasic.evaluation.result import Evaluation
from biphasic.execution.display import StudyDisplay, job_bar
from biphasic.execution.executor import Local, Work, run_here
from biphasic.execution.job import WorkItem
from biphasic.execution.scheduler import RetryPolicy, Scheduler
from biphasic.files import expanded
from biphasic.model.compute.device import compute_threads, computing_on, visible_devices
from biphasic.model.contract import model_limits
from biphasic.model.loading.build import empty_body
from biphasic.model.loading.configurations import matrix_weights
from biphasic.model.loading.hub import LocalModel, fetch_model
from biphasic.progress import progress_bar, say_on
from biphasic.records import Convention, ResultRecord
from biphasic.store import RESULT, Store
from biphasic.study import EXAMPLE_TOKENS, lines_of
from biphasic.study.inputs.models import check_lora, own_tokenizer
from biphasic.study.inputs.tasks import PlannedTask, TaskResolver, few_steps
from biphasic.study.jobs import FinetuneJob, GridRun, KeptModel, find_kept, keep_best
from biphasic.study.pins import record_pin
from biphasic.study.plan.cost import run_flops
from biphasic.study.plan.finetuning import (
    FinetuneGroup,
    PlannedBaseline,
    check_lengths,
    compute_baselines,
    other_reading,
)
from biphasic.study.plan.finished import OtherCode
from biphasic.study.plan.plan import NO_CORPUS, Plan, plan_study, width_of
from biphasic.study.run.jobs import WORKER, load_job
from biphasic.study.settings.arms import merge_settings, name_for_files
from biphasic.study.settings.study import PAPER, StudyConfig, TaskConfig, finetuning_of
from biphasic.study.sizing.speed import measure_speed, precision_advice
from biphasic.study.study import Study
from biphasic.tasks.kinds.registry import KINDS, name_in_kind
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.source import is_mteb, name_of, split_source, told_apart
from biphasic.training.memory import tune_allocator

SEEDS = (0,)
# Default protocol: up to three epochs instead of the study's one, for small data sets.
PROTOCOL = FinetuneProtocol(max_epochs=3)


def plan_evaluation(
    model: Path | str,
    tasks: Sequence[TaskConfig],
    *,
    learning_rates: Sequence[float] | None,
    extend: int | None,
    seeds: Sequence[int] | None,
    protocol: FinetuneProtocol | Mapping[str, Any] | Literal["paper"] | None,
    libraries: Sequence[str] | None,
    revision: str | None,
    root: Path | str,
    console: Console,
    shared: FinetuneProtocol | None = None,
    default_rates: Callable[[LocalModel], Sequence[float]] | None = None,
) -> Plan:
    """Fetch an encoder and tasks, check that they are compatible, and plan the study of it."""
    if isinstance(protocol, str) and protocol != PAPER:
        raise ConfigError(f"protocol: unknown value '{protocol}'{nearest(protocol, [PAPER])}")
    if isinstance(protocol, FinetuneProtocol):
        protocol = protocol.model_dump(exclude_unset=True)
    own = {} if protocol is None or isinstance(protocol, str) else protocol
    finetuning = partial(
        finetuning_of,
        extend=extend,
        seeds=seeds,
        protocol=protocol if protocol == PAPER else shared or {},
    )
    raw = {
        "name": "evaluate",
        "title": str(model),
        "arms": [{"name": "encoder", "encoder": {"pretrained": str(model)}}],
        "corpus": {"libraries": libraries},
        "tasks": [
            task.model_copy(update={"protocol": merge_settings(own, task.protocol)})
            for task in tasks
        ],
        "finetuning": finetuning(learning_rates),
    }
    parse_config(StudyConfig, raw, where="settings")  # Mistakes come up before a model is fetched.
    tune_allocator()
    encoder = fetch_model(model, revision=revision)
    if learning_rates is None and default_rates:
        raw["finetuning"] = finetuning(default_rates(encoder))
    name = Path(model).name or encoder.folder.name
    # The folder of a state is named by its identity, which is long.
    label = name[:12] if name == encoder.identity else name
    arm = name_for_files(label) if re.match(NAME_PATTERN, name_for_files(label)) else "encoder"
    named = {"name": arm, "label": label, "encoder": {"pretrained": str(encoder.folder)}}
    raw |= {"title": label, "arms": [named]}
    study = Study(parse_config(StudyConfig, raw, where="settings"), expanded(root))
    planned = _plan_tasks(study, encoder, console=console)
    options = {"--learning-rate": learning_rates, "--extend": extend}
    if any(task.training.protocol.is_probe for task in planned):
        for option in (name for name, value in options.items() if value):
            raise ConfigError(f"train: head has no learning rate; remove {option} or train=head")
    if not any(task.training.is_trained for task in planned):
        for option in (name for name, value in {**options, "--seed": seeds}.items() if value):
            say_on(console)(f"{option} is not used: zero-shot tasks train nothing")
    return plan_study(study, NO_CORPUS, planned, encoders={arm: encoder})


def rates_for(encoder: LocalModel) -> tuple[float, ...]:
    """Return the default rates of `finetune`: from a width of 768 on, the study's inner four.

    Narrower encoders need higher ones: with Adam, the best rate of a matrix is about inverse to its
    width (Yang et al. 2022, "Tensor Programs V", arXiv 2203.03466). Below 64, they are those of 64.
    """
    width = width_of(encoder.folder) or 768
    times = 768 / min(max(width, 64), 768)
    return tuple(float(f"{times * rate:.2g}") for rate in (2e-5, 5e-5, 1e-4, 2e-4))


def _plan_tasks(study: Study, encoder: LocalModel, *, console: Console) -> tuple[PlannedTask, ...]:
    """Build the tasks, and check that the model can read them."""
    limits = model_limits(encoder.folder)
    tokenizer = own_tokenizer(encoder.folder, limits)
    resolver = TaskResolver(study, say=say_on(console), longest=limits.longest_input)
    check = partial(check_lengths, positions=limits.positions, layers=limits.num_layers)
    # Check all tasks before reading any of them, which may take minutes.
    outlines, errors = [], list[Exception]()
    for task in study.config.tasks:
        try:
            outlines.append(resolver.outline(task))
        except (ConfigError, DataError) as error:
            errors.append(error)
            kind = split_source(task.origin)[0]
            outlines.append((task.name, kind, resolver.protocol_of(task, {})))
    check(outlines, tokenizer)
    check_lora(outlines, [encoder.folder])
    if errors:
        raise errors[0]
    planned = resolver.resolve(missing="build", assumed=[])
    check((task.outline for task in (*planned, *(task.training for task in planned))), tokenizer)
    return planned


def encoder_of(plan: Plan) -> LocalModel:
    """Return the encoder that a plan evaluates."""
    [encoder] = (arm.encoder for arm in plan.arms if arm.encoder)
    return encoder


def evaluate_plan(
    plan: Plan,
    *,
    convention: Convention,
    local: Local,
    device: torch.device | None,
    console: Console,
) -> Iterator[Evaluation]:
    """Run the missing fine-tunings of a plan, and yield the evaluation of each task."""
    if note := few_steps(plan.tasks):
        say_on(console)(note)
    for group in plan.groups:
        if _missing(plan, group, made_by="evaluate", console=console):
            with computing_on(device):
                run_finetunings(_job(plan, group), local, console=console)
        for task in group.evaluations:
            yield _summarise(plan, group, task, convention=convention, console=console)


def finetune_grid(
    plan: Plan, local: Local, *, scratch: Path, console: Console
) -> tuple[Evaluation, KeptModel]:
    """Run the missing fine-tunings of one task, and return scores and best model of the grid."""
    # The best weights are kept while the grid runs. Earlier runs have only scores: if the best is
    # one of them, it is repeated, which gives the same weights. The caller deletes `scratch`.
    say = say_on(console)
    [task], [group] = plan.tasks, plan.groups
    evaluation = score_grid(plan, local, scratch=scratch, console=console)
    chosen = best_result(evaluation.results, metric=task.info.metric)
    if chosen is None:
        raise TrainingError(f"{task.info.name}: every run diverged; lower the learning rate")
    kept = find_kept(scratch, learning_rate=chosen.learning_rate, seed=chosen.seed)
    if kept is None:
        say(
            f"the best run (rate {rate(chosen.learning_rate)}, seed {chosen.seed}) is of an "
            "earlier call, which did not keep its weights; repeating it"
        )
        run = next(run for run in group.runs[task.info.name] if run.id == chosen.id)
        with compute_threads(local.threads):
            kept = _refit(_job(plan, group), run, scratch=scratch / "again", console=console)
        if difference := _difference(kept, chosen):
            say(difference)
    return evaluation, kept


def score_grid(plan: Plan, local: Local, *, scratch: Path | None, console: Console) -> Evaluation:
    """Run the missing fine-tunings of one task, and keep weights if there is `scratch`."""
    [task], [group], say = plan.tasks, plan.groups, say_on(console)
    missing = _missing(plan, group, made_by="finetune", console=console)
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
            with compute_threads(local.threads):
                say(expected_time(plan, len(missing), num_workers=local.workers or 1))
        job = _job(plan, group).model_copy(update={"keep": scratch})
        run_finetunings(job, local, console=console)
    return _summarise(plan, group, task, convention="standard", console=console)


def _job(plan: Plan, group: FinetuneGroup) -> FinetuneJob:
    folder = encoder_of(plan).folder
    return group.job(tokenizer=folder, encoder=folder)


def _missing(plan: Plan, group: FinetuneGroup, *, made_by: str, console: Console) -> list[str]:
    """Return the runs of a group without a result, after pinning all that it may have."""
    results = [*group.possible_ids(), *(one.id for one in _floors(plan, group.evaluations))]
    name = plan.arms[0].config.label if made_by == "evaluate" else ""
    record_pin(plan.store, group.id, made_by=made_by, name=name, results=results)
    if other := OtherCode.of(plan.store, results=group.run_ids()):
        say_on(console)(other.note("another --root"))
    return group.missing_runs()


def _floors(plan: Plan, tasks: Sequence[PlannedTask]) -> list[PlannedBaseline]:
    return [one for one in plan.baselines if any(one.task is task for task in tasks)]


def run_finetunings(job: FinetuneJob, local: Local, *, console: Console) -> None:
    """Run a job in this process, or its parts in several processes."""
    # Parts do not know each other's scores: when all are done, more runs may be due.
    before: list[int] = []
    while not job.is_done() and (due := job.due()) != before:
        _run_due(job, local, console=console)
        before = due


def _run_due(job: FinetuneJob, local: Local, *, console: Console) -> None:
    parts = job.split(local.workers or 1)
    if len(parts) == 1:
        with compute_threads(local.threads):
            run_here(job, console=console)
        return
    items = [
        WorkItem(part.id, part.label, part.kind, make=lambda part=part: part, is_done=part.is_done)
        for part in parts
    ]
    shared = len(parts) if visible_devices() else 1  # parts may share a GPU
    local = local.model_copy(update={"workers": len(parts), "per_gpu": shared})
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


def _summarise(
    plan: Plan, group: FinetuneGroup, task: PlannedTask, *, convention: Convention, console: Console
) -> Evaluation:
    """Read and verify the results of a task's runs, and estimate its score in percent points."""
    metric, store = task.info.metric, Store(plan.store)
    results = tuple(_verified(store, run.id) for run in group.runs[task.info.name])
    selected = best_per_seed(grid(results, metric=metric))
    score = estimate([entry.test for entry in selected], convention=convention)
    floors, scores = _floors(plan, [task]), defaultdict[str, list[float]](list)
    if not all(store.has(RESULT, one.id) for one in floors):
        with progress_bar(console, "computing floors and references"):
            compute_baselines(floors, plan.store, encoder_of(plan).folder)
    for one in floors:
        share = (_verified(store, one.id).test or {}).get(metric)
        if share is not None:  # a plugin's metric may be of models alone
            scores[one.name].append(100 * share)
    return Evaluation(
        task=task.info,
        metric=metric,
        convention=convention,
        estimate=None if score is None else score.in_points,
        selected=tuple(entry.run for entry in selected),
        results=results,
        folder=plan.store / RESULT.place,
        other_reading=other_reading(encoder_of(plan).folder, task, setting="--set "),
        baselines={name: fmean(of) for name, of in scores.items()},
    )


def _verified(store: Store, identity: str) -> ResultRecord:
    store.get(RESULT, identity).verify()
    return store.result(identity)


def announcement(task: PlannedTask, *, num_runs: int, num_missing: int) -> str:
    """Describe the runs of a grid: their number, steps, and passes over the training data."""
    protocol = task.training.protocol
    num_read = protocol.num_read(task.training.epoch or 0)
    [line] = lines_of(
        "announcement",
        name=task.info.name,
        training=task.training,
        protocol=protocol,
        num_runs=num_runs,
        num_done=num_runs - num_missing,
        num_read=num_read,
        unit=KINDS[task.training.info.kind].facts.trained_unit,
        steps=protocol.num_steps(num_read),
        batches=math.ceil(num_read / protocol.batch_size),
    )
    return line


def expected_time(plan: Plan, num_runs: int, *, num_workers: int) -> str:
    """Say how long runs of a grid take here at most, from a second of measurement."""
    training = plan.tasks[0].training
    precision = "fp32" if training.protocol.precision == "fp32" else "bf16"
    model = empty_body(encoder_of(plan).folder)
    body = matrix_weights(model, model.config)
    weights = 4 * sum(each.numel() for each in model.parameters())  # in fp32
    flops = run_flops(body, training, EXAMPLE_TOKENS)
    rounds = math.ceil(num_runs / num_workers)  # of runs at once
    speed = measure_speed(precision)
    [line] = lines_of(
        "time",
        seconds=rounds * flops / speed.per_second,
        length=min(EXAMPLE_TOKENS, training.protocol.max_seqlen),
        is_known=False,
        # Weights, gradients and two moments; of LoRA, gradients and moments are not counted.
        memory=weights if training.protocol.lora else 4 * weights,
        for_each=" for each run",
        disk=weights,
        advice=precision_advice(precision, speed),
    )
    return line


def best_result(results: Iterable[ResultRecord], *, metric: str) -> ResultRecord | None:
    """Return the run with the best validation score; None if all diverged."""
    # Ties go to the smaller rate, then to the smaller seed.
    runs = grid(results, metric=metric)
    best = min(runs, key=lambda run: (-run.validation, run.rate, run.seed), default=None)
    return best and best.run


def _refit(job: FinetuneJob, run: GridRun, *, scratch: Path, console: Console) -> KeptModel:
    with job_bar(console, job.label) as report:
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


def chosen_tasks(
    tasks: Iterable[TaskConfig | Path | str],
    *,
    overrides: Iterable[str] = (),
    copies: Path | str | None = None,
) -> list[TaskConfig]:
    """Return tasks by name or path, with settings that replace theirs."""
    settings = parse_overrides(overrides)
    configs = [
        task if isinstance(task, TaskConfig) else task_from_text(str(task)) for task in tasks
    ]
    names = told_apart([config.name for config in configs], [config.origin for config in configs])
    chosen = []
    for config, name in zip(configs, names, strict=True):
        protocol = merge_settings(config.protocol, settings)
        changes: dict[str, Any] = {"name": name, "protocol": protocol}
        if copies is not None:
            changes["copies"] = Path(copies)
        chosen.append(config.model_copy(update=changes))
    return chosen


def task_from_text(text: str) -> TaskConfig:
    """Return the task for a name, a path, or `KIND:PATH`."""
    kind, path = split_source(text)
    place = expanded(path)
    if is_mteb(text):
        settings = {"name": text.partition(":")[2], "source": text}
        return parse_config(TaskConfig, settings, where=f"task '{text}'")
    is_name = kind is None and not place.exists() and not place.suffix
    settings = {"name": text} if is_name else {"name": name_of(place, kind), "source": text}
    if kind is not None:
        settings["name"] = name_in_kind(settings["name"], kind)
    return parse_config(TaskConfig, settings, where=f"task '{text}'")
