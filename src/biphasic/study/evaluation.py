"""An encoder on tasks: fine-tuned over a grid of learning rates and seeds, and scored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from rich.console import Console

from biphasic.analysis.load import Outcome
from biphasic.analysis.stats import Estimate, estimate, scores_on_test, select
from biphasic.config import nearest, parse_config, refuse_repeats
from biphasic.data.build_display import say_on
from biphasic.data.tokenizer import TextTokenizer
from biphasic.errors import ConfigError, ModelError, StudyError
from biphasic.files import expanded, read_json, verify_folder
from biphasic.model.hub import LocalModel, ModelLimits, fetch_model, model_limits
from biphasic.records import ZERO_SHOT, Convention, ResultRecord, RunRecord, parse_record
from biphasic.study.config import PAPER, FinetuningConfig, TaskConfig, merge_protocol
from biphasic.study.display import StudyDisplay
from biphasic.study.engine import LocalEngine
from biphasic.study.here import run_here
from biphasic.study.jobs import FinetuneJob, GridRun
from biphasic.study.plan import (
    FinetuneGroup,
    by_training,
    check_tasks,
    finetune_job,
    missing_runs,
    plan_group,
)
from biphasic.study.prepared import STORE
from biphasic.study.run import DEFAULT_ROOT
from biphasic.study.schedule import RetryPolicy, Scheduler
from biphasic.study.slots import check_cores, local_slots
from biphasic.study.task_inputs import PlannedTask, TaskLocator
from biphasic.study.wanted import record_wish
from biphasic.study.work import WorkItem
from biphasic.tasks.folder import DESCRIPTION, read_description
from biphasic.tasks.own.task_file import load_task_file
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
        estimate: Mean of the selected runs' test scores with its interval; None if all diverged.
        selected: The run that stands for each seed, in order of seeds.
        results: Every fine-tuning of the grid; one run where the task is zero-shot.
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
    num_workers: int = 1,
    num_threads: int = 1,
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
        num_workers: Fine-tunings at once, each in a process of its own; 1 runs them in this one.
        num_threads: Threads per fine-tuning. Results may depend on it in the last bits.
        console: Where progress is shown; standard error when None.

    Raises:
        ConfigError: A setting is wrong.
        DataError: Model or task are missing or damaged.
        ModelError: transformers cannot load the model, or it cannot be an encoder.
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
    num_workers: int = 1,
    num_threads: int = 1,
    console: Console | None = None,
) -> Iterator[Evaluation]:
    """Evaluate an encoder on several tasks; all are checked before the first begins.

    Tasks that are trained on the same one share its fine-tunings. Arguments and errors as in
    `evaluate`; evaluations come as they are finished.
    """
    check_cores(num_workers=num_workers, num_threads=num_threads)
    if convention not in get_args(Convention):
        known = nearest(convention, get_args(Convention))
        raise ConfigError(f"convention: unknown value '{convention}'{known}")
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
        record_wish(planned.store, group.id, made_by="evaluate", results=group.run_ids())
        if missing_runs(group, planned.store):
            run_finetunings(
                planned.job(group),
                num_workers=num_workers,
                num_threads=num_threads,
                console=console,
            )
        for task in evaluations:
            runs = group.runs[task.info.name]
            yield summarise(task, runs, planned.store, convention=convention)


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
    encoder = fetch_model(model, revision=revision)
    grid = {"learning_rates": learning_rates, "seeds": seeds}
    finetuning = parse_config(
        FinetuningConfig,
        {name: value for name, value in grid.items() if value is not None},
        where="evaluate",
    )
    by_hand = _settings_of(protocol)
    is_paper = protocol == PAPER
    limits = model_limits(encoder.folder)
    locator = TaskLocator(
        store=store,
        libraries=None if libraries is None else tuple(libraries),
        protocol_of=lambda task, needed: merge_protocol(
            PAPER if is_paper else shared or FinetuneProtocol(),
            needed,
            {**by_hand, **task.protocol},
            longest=limits.longest_input,
        ),
        is_paper=is_paper,
        say=say_on(console),
    )
    chosen = tuple(t if isinstance(t, TaskConfig) else task_from_text(str(t)) for t in tasks)
    try:
        refuse_repeats("tasks", [task.name for task in chosen])
    except ValueError as error:
        raise ConfigError(f"evaluate: {error}") from None
    planned = locator.plan(chosen)
    tokenizer = TextTokenizer.load(encoder.folder)
    every = (*planned, *(task.training for task in planned))
    _check_fit(every, limits, tokenizer)
    check_tasks(every, tokenizer)
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
        StudyDisplay(console, items) as display,
        LocalEngine(
            job.store,
            local_slots(num_workers=len(parts), num_threads=num_threads, jobs_per_gpu=len(parts)),
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


def _check_fit(tasks: Iterable[PlannedTask], limits: ModelLimits, tokenizer: TextTokenizer) -> None:
    """Check that a model can read what tasks will give it.

    Raises:
        ConfigError: Sequences may be longer than the model has positions.
        ModelError: The tokenizer has more entries than the model.
    """
    for task in tasks:
        if limits.positions is not None and task.protocol.max_seqlen > limits.positions:
            raise ConfigError(
                f"task '{task.info.name}': max_seqlen {task.protocol.max_seqlen} exceeds the "
                f"model's {limits.positions} positions"
            )
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
    """Read the results of a task's runs, each checked, and estimate its score."""
    outcomes = [_outcome(run, store, task=task.info.name) for run in runs]
    selected = select(outcomes, metric=task.info.metric)
    scores = scores_on_test(selected, metric=task.info.metric)
    return Evaluation(
        task=task.info,
        metric=task.info.metric,
        convention=convention,
        estimate=estimate(scores, convention=convention),
        selected=tuple(outcome.result for outcome in selected if outcome.result),
        results=tuple(outcome.result for outcome in outcomes if outcome.result),
        folder=store / "finetunes",
    )


def _outcome(run: GridRun, store: Path, *, task: str) -> Outcome:
    record = RunRecord(
        id=run.id, arm="encoder", task=task, learning_rate=run.learning_rate, seed=run.seed
    )
    path = store / "finetunes" / run.id / "result.json"
    verify_folder(path.parent, remedy="delete this folder and run again")
    result = parse_record(ResultRecord, read_json(path), where=str(path))
    return Outcome(run=record, status=result.status, result=result)
