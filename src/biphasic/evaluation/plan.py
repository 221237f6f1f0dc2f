"""The plan of an evaluation: an encoder, tasks and a grid, checked before it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from biphasic.config import nearest, parse_config, parse_overrides, refuse_repeats
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ConfigError
from biphasic.files import expanded
from biphasic.locks import Say
from biphasic.model.checks.limits import ModelLimits, model_limits
from biphasic.model.loading.hub import LocalModel, fetch_model
from biphasic.progress import say_on
from biphasic.store import store_of
from biphasic.study.inputs.models import own_tokenizer
from biphasic.study.inputs.tasks import PlannedTask, TaskResolver, task_outline
from biphasic.study.jobs.finetune import FinetuneJob
from biphasic.study.plan.baselines import PlannedBaseline, plan_baselines, vectors_of_encoder
from biphasic.study.plan.finetuning import FinetuneGroup, check_lengths, other_reading, plan_group
from biphasic.study.plan.finished import OtherCode
from biphasic.study.spec.arms import merge_settings
from biphasic.study.spec.study import (
    PAPER,
    FinetuningConfig,
    TaskConfig,
    finetuning_of,
    merge_protocol,
)
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.source import is_mteb, name_in_kind, name_of, split_source, told_apart
from biphasic.training.memory import tune_allocator
from biphasic.training.recipe import Seeds


@dataclass(frozen=True)
class PlannedEvaluation:
    """A checked evaluation that is ready to run."""

    name: str  # of the encoder, in progress displays
    encoder: LocalModel
    limits: ModelLimits
    tasks: tuple[PlannedTask, ...]
    finetuning: FinetuningConfig
    store: Path

    def group(self, evaluations: tuple[PlannedTask, ...]) -> FinetuneGroup:
        """Return the fine-tunings of tasks that share a training."""
        return plan_group(
            self.encoder.identity,
            evaluations,
            learning_rates=self.finetuning.learning_rates,
            seeds=self.finetuning.seeds_of(Seeds()),
            name=self.name,
            store=self.store,
            extend=self.finetuning.extend,
        )

    def baselines(self, tasks: Sequence[PlannedTask]) -> tuple[PlannedBaseline, ...]:
        """Return the floors and references of tasks."""
        vectors, seeds = vectors_of_encoder(self.encoder), self.finetuning.seeds_of(Seeds())
        return tuple(plan_baselines(tasks, {self.name: vectors}, seeds))

    def pinned(self, group: FinetuneGroup) -> list[str]:
        """Return the identities of all possible results of a group, and of its baselines."""
        return [*group.possible_ids(), *(one.id for one in self.baselines(group.evaluations))]

    def job(self, group: FinetuneGroup) -> FinetuneJob:
        """Return the job of a group."""
        folder = self.encoder.folder
        return group.job(tokenizer=folder, encoder=folder)

    def other_reading(self, task: PlannedTask) -> str:
        """Say how an embedding model was trained, if a task without training reads it otherwise."""
        return other_reading(self.encoder.folder, task, setting="--set ")

    def missing(self, group: FinetuneGroup, *, say: Say) -> list[str]:
        """Return the runs of a group without a result, and say which results other code made."""
        if other := OtherCode.of(self.store, results=group.run_ids()):
            say(other.note("another --root"))
        return group.missing_runs()


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
    default_rates: Sequence[float] | None = None,
) -> PlannedEvaluation:
    """Fetch an encoder and tasks, and check that they are compatible; see `evaluate`."""
    is_paper = protocol == PAPER
    if isinstance(protocol, str) and not is_paper:
        raise ConfigError(f"protocol: unknown value '{protocol}'{nearest(protocol, [PAPER])}")
    tune_allocator()
    store = store_of(root)
    say, encoder = say_on(console), fetch_model(model, revision=revision)
    rates = default_rates if learning_rates is None else learning_rates
    finetuning = finetuning_of(rates, extend, seeds, protocol=PAPER if is_paper else {})
    limits = model_limits(encoder.folder)
    if isinstance(protocol, FinetuneProtocol):
        protocol = protocol.model_dump(exclude_unset=True)
    settings = {} if protocol is None or isinstance(protocol, str) else protocol

    def protocol_of(task: TaskConfig, needed: Mapping[str, Any]) -> FinetuneProtocol:
        return merge_protocol(
            PAPER if is_paper else shared or FinetuneProtocol(),
            needed,
            merge_settings(settings, task.protocol),
            longest=limits.longest_input,
        )

    resolver = TaskResolver(
        store=store,
        libraries=None if libraries is None else tuple(libraries),
        protocol_of=protocol_of,
        is_paper=is_paper,
        say=say,
    )
    planned = _plan_tasks(tasks, resolver, own_tokenizer(encoder.folder, limits), limits)
    options = {"--learning-rate": learning_rates, "--extend": extend}
    if any(task.training.protocol.is_probe for task in planned):
        for option in (name for name, value in options.items() if value):
            raise ConfigError(f"train: head has no learning rate; remove {option} or train=head")
    name = Path(model).name or encoder.folder.name
    # The folder of a state is named by its identity, which is long.
    name = name[:12] if name == encoder.identity else name
    return PlannedEvaluation(name, encoder, limits, planned, finetuning, store)


def _plan_tasks(
    tasks: Sequence[TaskConfig],
    resolver: TaskResolver,
    tokenizer: TextTokenizer,
    limits: ModelLimits,
) -> tuple[PlannedTask, ...]:
    """Build the tasks, and check that the model can read them."""
    try:
        refuse_repeats("tasks", [task.name for task in tasks])
    except ValueError as error:
        raise ConfigError(f"evaluate: {error}") from None
    # Check all tasks before reading any of them, which may take minutes.
    outlines = [(task, *task_outline(task.origin)) for task in tasks]
    check_lengths(
        ((task.name, kind, resolver.protocol_of(task, needed)) for task, kind, needed in outlines),
        tokenizer,
        positions=limits.positions,
        layers=limits.num_layers,
    )
    planned = resolver.build(tuple(tasks))
    every = (*planned, *(task.training for task in planned))
    check_lengths(
        (task.outline for task in every),
        tokenizer,
        positions=limits.positions,
        layers=limits.num_layers,
    )
    return planned


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
