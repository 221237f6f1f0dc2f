"""An encoder on tasks: fine-tuned over a grid of learning rates and seeds, and scored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from rich.console import Console

from biphasic.analysis.records import Outcome
from biphasic.analysis.scores.runs import Estimate, estimate, scores_on_test, select
from biphasic.config import nearest, parse_config, refuse_repeats
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ConfigError, ModelError, StudyError
from biphasic.execution.display import StudyDisplay
from biphasic.execution.executor import LocalExecutor
from biphasic.execution.graph import WorkItem
from biphasic.execution.inline import run_here
from biphasic.execution.scheduler import RetryPolicy, Scheduler
from biphasic.execution.slots import check_cores, local_slots
from biphasic.files import expanded, read_json, verify_folder
from biphasic.model.checks.limits import ModelLimits, model_limits
from biphasic.model.compute.device import computing_on, parse_device
from biphasic.model.loading.hub import LocalModel, fetch_model
from biphasic.progress import say_on
from biphasic.records import ZERO_SHOT, Convention, ResultRecord, RunRecord, parse_record
from biphasic.study.gc.pins import record_pin
from biphasic.study.inputs.continuation import check_state
from biphasic.study.inputs.tasks import PlannedTask, TaskResolver, task_outline
from biphasic.study.jobs.finetune import FinetuneJob, GridRun
from biphasic.study.paths import STORE
from biphasic.study.plan.finished import missing_runs
from biphasic.study.plan.plan import (
    FinetuneGroup,
    by_training,
    finetune_job,
    plan_group,
    refuse_lengths,
)
from biphasic.study.run.jobs import WORKER, load_job
from biphasic.study.run.run import DEFAULT_ROOT, default_workers
from biphasic.study.spec.study import PAPER, FinetuningConfig, TaskConfig, merge_protocol
from biphasic.tasks.custom.task_file import load_task_file
from biphasic.tasks.formats.folder import DESCRIPTION, read_description
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import TaskInfo
from biphasic.tasks.source import split_source
from biphasic.training.memory import tune_allocator


@dataclass(frozen=True)
class Evaluation:
    """An encoder on one task.

    Attributes:
        task: What the task is; `overlaps` counts test examples that also stand in training data.
        metric: The metric that decides it.
        convention: How the interval was computed.
        estimate: Mean of the selected runs' test scores with its interval, in percent points; None
            if all diverged.
        selected: The run that stands for each seed, in order of seeds; the records as they are on
            disk, whose metrics are shares.
        results: Every fine-tuning of the grid, likewise; one run where the task is zero-shot.
        folder: Where the results are: `FOLDER/ID/result.json` and `scores.parquet`.
    """

    task: TaskInfo
    metric: str
    convention: Convention
    estimate: Estimate | None
    selected: tuple[ResultRecord, ...]
    results: tuple[ResultRecord, ...]
    folder: Path


def evaluate(
    model: Path | str,
    task: TaskConfig | Path | str,
    *,
    learning_rates: Sequence[float] | None = None,
    seeds: Sequence[int] | None = None,
    protocol: FinetuneProtocol | Mapping[str, Any] | Literal["paper"] | None = None,
    libraries: Sequence[str] | None = None,
    revision: str | None = None,
    convention: Convention = "standard",
    root: Path | str = DEFAULT_ROOT,
    num_workers: int | None = 1,
    num_threads: int = 1,
    device: str | None = None,
    console: Console | None = None,
) -> Evaluation:
    """Fine-tune an encoder on a task over a grid, and estimate its score.

    For each seed, the learning rate with the best validation score is chosen; the estimate is the
    mean of the chosen runs' test scores. Zero-shot tasks are scored once, without training.

    Args:
        model: Folder of a state, or of any model that transformers loads, with a fast tokenizer;
            or the id of one on the hub.
        task: A built-in task, a published dataset, `KIND:PATH`, a task file or a task folder, as
            docs/tasks.md says; with revision, local copies or a metric as a `TaskConfig`.
        learning_rates: Peak rates; the study's six when None.
        seeds: Seeds; the study's five when None.
        protocol: All other constants; the study's when None, those of its public code for
            `"paper"`. What is set here goes before what the task's description asks for. Inputs
            may be as long as the model's unless `max_seqlen` says otherwise.
        libraries: Whose documentation the built-in tasks are made of; all when None.
        revision: Of a model on the hub; the newest when None.
        convention: How the interval is computed.
        root: Folder of the store.
        num_workers: Fine-tunings at once, each in a process of its own; 1 runs them in this one,
            None one per core, or one on a GPU, as the command does.
        num_threads: Threads per fine-tuning. Results may depend on it in the last bits.
        device: Where the model computes: `cpu`, `cuda` or `cuda:N`; the first GPU, or else the
            CPU, when None. `result.json` names it.
        console: Where progress is shown; standard error when None.

    Raises:
        ConfigError: A setting is wrong.
        DataError: Model or task are missing or damaged.
        ModelError: transformers cannot load the model, or it cannot be an encoder.

    Example:
        >>> from biphasic import evaluate
        >>> found = evaluate(state, "sc:reviews", learning_rates=[1e-3, 3e-3], seeds=[0, 1])
        >>> found.metric, found.estimate.num_seeds, len(found.results)
        ('accuracy', 2, 4)
    """
    [evaluation] = evaluate_all(
        model,
        [task],
        learning_rates=learning_rates,
        seeds=seeds,
        protocol=protocol,
        libraries=libraries,
        revision=revision,
        convention=convention,
        root=root,
        num_workers=num_workers,
        num_threads=num_threads,
        device=device,
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
    revision: str | None = None,
    convention: Convention = "standard",
    root: Path | str = DEFAULT_ROOT,
    num_workers: int | None = 1,
    num_threads: int = 1,
    device: str | None = None,
    console: Console | None = None,
) -> Iterator[Evaluation]:
    """Evaluate an encoder on several tasks; all are checked before the first begins.

    Tasks that are trained on the same one share its fine-tunings. Arguments and errors as in
    `evaluate`; evaluations come as they are finished.

    Example:
        >>> from biphasic import evaluate_all
        >>> grid = {"learning_rates": [1e-3], "seeds": [0, 1]}
        >>> [found.metric for found in evaluate_all(state, ["sc:reviews"], **grid)]
        ['accuracy']
    """
    num_workers = default_workers(num_threads) if num_workers is None else num_workers
    check_cores(num_workers=num_workers, num_threads=num_threads)
    known_convention(convention)
    chosen = parse_device(device)
    console = console or Console(stderr=True)
    planned = plan_evaluation(
        model,
        tasks,
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
        if missing_runs(group, planned.store):
            with computing_on(chosen):
                run_finetunings(
                    planned.job(group),
                    num_workers=num_workers,
                    num_threads=num_threads,
                    console=console,
                )
        for task in evaluations:
            runs = group.runs[task.info.name]
            yield summarise(task, runs, planned.store, convention=convention)


def known_convention(text: str) -> Convention:
    """Return the convention of a name.

    Raises:
        ConfigError: There is none.
    """
    known = get_args(Convention)
    if text not in known:
        raise ConfigError(f"convention: unknown value '{text}'{nearest(text, known)}")
    return cast(Convention, text)


@dataclass(frozen=True)
class PlannedEvaluation:
    """An encoder and tasks, all checked, before anything is computed.

    Attributes:
        name: What progress displays call the encoder.
        encoder: The encoder.
        limits: What it can read.
        tasks: The tasks.
        finetuning: The grid.
        store: Content store.
    """

    name: str
    encoder: LocalModel
    limits: ModelLimits
    tasks: tuple[PlannedTask, ...]
    finetuning: FinetuningConfig
    store: Path

    def group(self, evaluations: tuple[PlannedTask, ...]) -> FinetuneGroup:
        """Return the fine-tunings that serve tasks with the same training."""
        return plan_group(self.encoder.identity, evaluations, self.finetuning, name=self.name)

    def job(self, group: FinetuneGroup) -> FinetuneJob:
        """Return the job that does them."""
        folder = self.encoder.folder
        return finetune_job(group, store=self.store, tokenizer=folder, encoder=folder)


def plan_evaluation(
    model: Path | str,
    tasks: Sequence[TaskConfig | Path | str],
    *,
    learning_rates: Sequence[float] | None,
    seeds: Sequence[int] | None,
    protocol: FinetuneProtocol | Mapping[str, Any] | Literal["paper"] | None,
    libraries: Sequence[str] | None,
    revision: str | None,
    root: Path | str,
    console: Console,
    shared: FinetuneProtocol | None = None,
) -> PlannedEvaluation:
    """Find an encoder and tasks, and check that they go together.

    Arguments and errors as in `evaluate`; beside them `shared`, which holds where neither
    `protocol` nor a task says otherwise.
    """
    tune_allocator()
    store = Path(root).resolve() / STORE
    say, encoder = say_on(console), fetch_model(model, revision=revision)
    check_state(encoder, store, say=say)
    grid = {"learning_rates": learning_rates, "seeds": seeds}
    finetuning = parse_config(
        FinetuningConfig,
        {name: value for name, value in grid.items() if value is not None},
        where="evaluate",
    )
    by_hand = _settings_of(protocol)
    is_paper = protocol == PAPER
    limits = model_limits(encoder.folder)

    def protocol_of(task: TaskConfig, needed: Mapping[str, Any]) -> FinetuneProtocol:
        return merge_protocol(
            PAPER if is_paper else shared or FinetuneProtocol(),
            needed,
            {**by_hand, **task.protocol},
            longest=limits.longest_input,
        )

    resolver = TaskResolver(
        store=store,
        libraries=None if libraries is None else tuple(libraries),
        protocol_of=protocol_of,
        is_paper=is_paper,
        say=say,
    )
    chosen = tuple(t if isinstance(t, TaskConfig) else task_from_text(str(t)) for t in tasks)
    try:
        refuse_repeats("tasks", [task.name for task in chosen])
    except ValueError as error:
        raise ConfigError(f"evaluate: {error}") from None
    tokenizer = TextTokenizer.load(encoder.folder)
    _check_vocabulary(limits, tokenizer)
    # All of them before any is read, which may take minutes.
    outlines = [(task, *task_outline(task.origin)) for task in chosen]
    refuse_lengths(
        ((task.name, kind, protocol_of(task, needed)) for task, kind, needed in outlines),
        tokenizer,
        positions=limits.positions,
    )
    planned = resolver.build(chosen)
    every = (*planned, *(task.training for task in planned))
    refuse_lengths(
        ((task.info.name, task.info.kind, task.protocol) for task in every),
        tokenizer,
        positions=limits.positions,
    )
    name = Path(model).name or encoder.folder.name
    # A state's folder is called by its identity, which is long.
    name = name[:12] if name == encoder.identity else name
    return PlannedEvaluation(name, encoder, limits, planned, finetuning, store)


def run_finetunings(
    job: FinetuneJob, *, num_workers: int, num_threads: int, console: Console
) -> None:
    """Do a job in this process, or its parts in several.

    Raises:
        StudyError: A part failed in its process.
    """
    parts = job.split(num_workers)
    if len(parts) == 1:
        with compute_threads(num_threads):
            run_here(job, console=console)
        return
    items = [_part(part) for part in parts]
    with (
        StudyDisplay(console, items, num_slots=len(parts)) as display,
        LocalExecutor(
            job.store,
            local_slots(num_workers=len(parts), num_threads=num_threads, jobs_per_gpu=len(parts)),
            load_job=load_job,
            worker=WORKER,
            num_threads=num_threads,
            log_folder=job.store.parent / "logs",
            watch=display.progress,
        ) as engine,
    ):
        outcome = Scheduler(items, engine, policy=RetryPolicy(), watcher=display).run()
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
    """Compute on a number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _settings_of(
    protocol: FinetuneProtocol | Mapping[str, Any] | Literal["paper"] | None,
) -> dict[str, Any]:
    """Return what was set by hand: it goes before what tasks ask for."""
    if isinstance(protocol, FinetuneProtocol):
        return protocol.model_dump(include=protocol.model_fields_set)
    return {} if protocol is None or protocol == PAPER else dict(protocol)


def _check_vocabulary(limits: ModelLimits, tokenizer: TextTokenizer) -> None:
    """Check that a model and its tokenizer belong together.

    Raises:
        ModelError: The tokenizer has more entries than the model.
    """
    if tokenizer.vocab_size > limits.num_embeddings:
        raise ModelError(
            f"the tokenizer has {tokenizer.vocab_size} entries, the model only "
            f"{limits.num_embeddings}; they do not belong together"
        )


def task_from_text(text: str) -> TaskConfig:
    """Return the task that people mean by one word: a name, a path, or `KIND:PATH`.

    It is called as what it is, or as its file or folder.

    Raises:
        ConfigError: It is neither a path nor a known name.
    """
    kind, path = split_source(text)
    place = expanded(path)
    is_name = kind is None and not place.exists() and not place.suffix
    settings = {"name": text} if is_name else {"name": _name_of(place), "source": text}
    if kind == ZERO_SHOT:
        # Beside the same data with fine-tuning.
        settings["name"] += f"-{ZERO_SHOT}"
    return parse_config(TaskConfig, settings, where=f"task '{text}'")


def _name_of(place: Path) -> str:
    """Return what a task file or folder calls its task."""
    if place.suffix in {".yaml", ".yml"}:
        return load_task_file(place).name
    if (place / DESCRIPTION).is_file():
        return read_description(place).name
    return place.resolve().name


def summarise(
    task: PlannedTask, runs: Sequence[GridRun], store: Path, *, convention: Convention
) -> Evaluation:
    """Read the results of a task's runs, each checked, and estimate its score in points."""
    outcomes = [_outcome(run, store, task=task.info.name) for run in runs]
    selected = select(outcomes, metric=task.info.metric)
    found = estimate(scores_on_test(selected, metric=task.info.metric), convention=convention)
    return Evaluation(
        task=task.info,
        metric=task.info.metric,
        convention=convention,
        estimate=None if found is None else found.in_points,
        selected=tuple(outcome.result for outcome in selected if outcome.result),
        results=tuple(outcome.result for outcome in outcomes if outcome.result),
        folder=store / "finetunes",
    )


def _outcome(run: GridRun, store: Path, *, task: str) -> Outcome:
    record = RunRecord(
        id=run.id, arm="encoder", task=task, learning_rate=run.learning_rate, seed=run.seed
    )
    path = store / "finetunes" / run.id / "result.json"
    remedy = "delete this folder and run again"
    verify_folder(path.parent, remedy=remedy)
    result = parse_record(ResultRecord, read_json(path), where=str(path), remedy=remedy)
    return Outcome(run=record, status=result.status, result=result)
