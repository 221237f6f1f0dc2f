"""The fine-tunings of a plan: which tasks share a training, and what names each result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ConfigError
from biphasic.files import digest
from biphasic.records import ZERO_SHOT_SEED
from biphasic.study.inputs.tasks import PlannedTask
from biphasic.study.jobs.finetune import FinetuneJob, GridRun, ScoredTask, TaskInput
from biphasic.study.spec.study import FinetuningConfig
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.protocol import FINETUNING_VERSION, FinetuneProtocol
from biphasic.training.recipe import Seeds


@dataclass(frozen=True)
class FinetuneGroup:
    """All fine-tunings of one state on one task.

    Attributes:
        training: The task that is trained on.
        evaluations: The tasks that are scored afterwards.
        grid: Learning rates and seeds.
        label: Name in progress displays.
    """

    id: str
    state: str
    training: PlannedTask
    evaluations: tuple[PlannedTask, ...]
    grid: tuple[tuple[float, int], ...]
    label: str

    @cached_property
    def runs(self) -> Mapping[str, tuple[GridRun, ...]]:
        """The runs by name of the scored task; each task has the same grid in the same order."""
        return {
            task.info.name: tuple(
                GridRun(id=identity, learning_rate=rate, seed=seed)
                for identity, (rate, seed) in zip(self._ids(task), self.grid, strict=True)
            )
            for task in self.evaluations
        }

    def run_ids(self) -> Iterator[str]:
        """Yield the identities of all runs without storing them: plans have millions."""
        for task in self.evaluations:
            yield from self._ids(task)

    def _ids(self, task: PlannedTask) -> Iterator[str]:
        shared = run_determinants(self.state, task)
        for rate, seed in self.grid:
            yield digest({**shared, "learning_rate": rate, "seed": seed})

    @property
    def is_zero_shot(self) -> bool:
        """Whether encoders are scored without training."""
        return not self.training.is_trained

    @property
    def num_steps(self) -> int:
        """Updates of one fine-tuning; the protocol's maximum if the epoch is unknown."""
        if self.is_zero_shot:
            return 0
        protocol, epoch = self.training.protocol, self.training.epoch
        return protocol.max_steps if epoch is None else protocol.num_steps(epoch)


def by_training(tasks: tuple[PlannedTask, ...]) -> list[tuple[PlannedTask, ...]]:
    """Group tasks by the task that encoders are fine-tuned on; a group shares one training."""
    groups: dict[str, list[PlannedTask]] = {}
    for task in tasks:
        groups.setdefault(digest(_training_determinants(task.training)), []).append(task)
    return [tuple(group) for group in groups.values()]


def check_tasks(
    tasks: Iterable[PlannedTask], tokenizer: TextTokenizer, *, positions: int | None = None
) -> None:
    """Check that tasks can be encoded by their protocols; see `refuse_lengths`."""
    outlines = ((task.info.name, task.info.kind, task.protocol) for task in tasks)
    refuse_lengths(outlines, tokenizer, positions=positions)


def refuse_lengths(
    tasks: Iterable[tuple[str, str | None, FinetuneProtocol]],
    tokenizer: TextTokenizer,
    *,
    positions: int | None = None,
) -> None:
    """Check that `max_seqlen` is long enough for each task and within the model's positions.

    Each task has a name, a kind (None if unknown) and a protocol. Without `positions`, the model
    sets no limit.
    """
    problems: list[str] = []
    for name, kind, protocol in tasks:
        if positions is not None and protocol.max_seqlen > positions:
            problems.append(
                f"task '{name}': max_seqlen {protocol.max_seqlen} exceeds the model's {positions} "
                f"positions; set max_seqlen={positions} or less"
            )
        elif kind is not None:
            try:
                KINDS[kind].check_protocol(tokenizer, protocol=protocol)
            except ConfigError as error:
                problems.append(f"task '{name}': {error}")
    if problems:
        raise ConfigError("; ".join(dict.fromkeys(problems)))


def _training_determinants(task: PlannedTask) -> dict[str, Any]:
    """Return everything that determines fine-tuning on a task, except rate and seed."""
    return {**_task_determinants(task), "protocol": task.determinants}


def _task_determinants(task: PlannedTask) -> dict[str, Any]:
    return {"task": task.info.name, "task_sha256": task.info.sha256}


def run_determinants(state: str, task: PlannedTask) -> dict[str, Any]:
    """Return everything that determines the scores of a state on a task, except rate and seed."""
    shared = {"finetuning_version": FINETUNING_VERSION, "state": state}
    if task.trainer is None and task.is_trained:
        return {**shared, **_training_determinants(task)}
    scored = {
        **_task_determinants(task),
        "protocol": task.protocol.scoring_determinants(is_zero_shot=not task.is_trained),
    }
    if task.trainer is not None:
        scored["trained_on"] = _training_determinants(task.trainer)
    return {**shared, **scored}


def plan_group(
    state: str,
    evaluations: tuple[PlannedTask, ...],
    finetuning: FinetuningConfig,
    *,
    run: Seeds,
    name: str,
) -> FinetuneGroup:
    """Plan the fine-tunings of one state for tasks that share a training.

    `run` are the seeds of its pretraining run.
    """
    training = evaluations[0].training
    grid = [(rate, seed) for rate in finetuning.learning_rates for seed in finetuning.seeds_of(run)]
    if not training.is_trained:
        # Nothing is trained: no rate to choose, nothing random.
        grid = [(0.0, ZERO_SHOT_SEED)]
    scored = " + ".join(task.info.name for task in evaluations)
    return FinetuneGroup(
        id=digest(run_determinants(state, training)),
        state=state,
        training=training,
        evaluations=evaluations,
        grid=tuple(grid),
        label=f"{name} on {scored}",
    )


def finetune_job(
    group: FinetuneGroup, *, store: Path, tokenizer: Path, encoder: Path
) -> FinetuneJob:
    """Return the job of a group."""
    training = group.training
    return FinetuneJob(
        id=group.id,
        label=group.label,
        store=store,
        tokenizer=tokenizer,
        encoder=encoder,
        state=group.state,
        training=TaskInput(
            name=training.info.name, folder=training.folder, protocol=training.protocol
        ),
        evaluations=tuple(
            ScoredTask(
                name=task.info.name,
                folder=task.folder,
                protocol=task.protocol,
                runs=group.runs[task.info.name],
            )
            for task in group.evaluations
        ),
    )
