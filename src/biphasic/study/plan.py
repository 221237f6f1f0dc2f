"""From a study to jobs: segments to train and groups to fine-tune, named by identity.

The states after each step of all arms form a tree by identity. A segment runs from one state that
somebody needs to the next: the untrained model, a branching point, an arm's end.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from biphasic.data.tokenizer import TextTokenizer
from biphasic.files import digest, is_complete, verify_folder
from biphasic.study.config import ArmConfig, FinetuningConfig, StudyConfig, TaskConfig
from biphasic.study.jobs import GridRun
from biphasic.tasks.formats import load_task
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.qa import check_room
from biphasic.tasks.records import SPLITS, TaskInfo
from biphasic.training.recipe import NUMERICS_VERSION, Ground, Lineage, Recipe
from biphasic.training.state import Progress


@dataclass(frozen=True)
class Segment:
    """Train from one state to a later one.

    Attributes:
        id: Identity of the state at its end.
        recipe: One of the recipes that pass through it.
        start: Step it begins after.
        end: Step it ends with.
        parent: Identity of the state it needs, or None where it begins with random weights.
        label: What progress displays call it.
    """

    id: str
    recipe: Recipe
    start: int
    end: int
    parent: str | None
    label: str


@dataclass(frozen=True)
class PlannedTask:
    """A task with its protocol."""

    info: TaskInfo
    protocol: FinetuneProtocol
    num_examples: dict[str, int]


@dataclass(frozen=True)
class FinetuneGroup:
    """All fine-tunings of one state on one task."""

    id: str
    state: str
    task: PlannedTask
    runs: tuple[GridRun, ...]
    label: str


@dataclass(frozen=True)
class PlannedArm:
    """An arm and the states it passes through."""

    config: ArmConfig
    lineage: Lineage

    @property
    def state(self) -> str:
        """Identity of its final state."""
        return self.lineage.identities[-1]


@dataclass(frozen=True)
class Plan:
    """Everything a study needs, in an order in which it can be done."""

    arms: tuple[PlannedArm, ...]
    segments: tuple[Segment, ...]
    groups: tuple[FinetuneGroup, ...]
    tasks: tuple[PlannedTask, ...]


def plan_study(config: StudyConfig, ground: Ground, tasks_folder: Path) -> Plan:
    """Expand a study on its data.

    Raises:
        ConfigError: A schedule does not fit its run.
        CheckpointError: A task's data are missing or damaged.
    """
    arms = tuple(PlannedArm(arm, Lineage(config.recipe_of(arm), ground)) for arm in config.arms)
    tasks = tuple(_plan_task(config, task, tasks_folder) for task in config.tasks)
    groups = {
        group.id: group
        for task in tasks
        for arm in arms
        for group in [_plan_group(config, arm, task)]
    }
    return Plan(arms=arms, segments=plan_segments(arms), groups=tuple(groups.values()), tasks=tasks)


def plan_segments(arms: tuple[PlannedArm, ...]) -> tuple[Segment, ...]:
    """Return the segments that lead to every arm's final state, each once, trunks first."""
    needed = {arm.state for arm in arms}
    for index, arm in enumerate(arms):
        for other in arms[:index]:
            shared = _shared_steps(arm.lineage.identities, other.lineage.identities)
            if shared > 0:
                needed.add(arm.lineage.identities[shared])
    segments: dict[str, Segment] = {}
    for arm in arms:
        identities = arm.lineage.identities
        stops = [step for step, identity in enumerate(identities) if step and identity in needed]
        start = 0
        for end in stops or [0]:
            identity = identities[end]
            segments.setdefault(
                identity,
                Segment(
                    id=identity,
                    recipe=arm.lineage.recipe,
                    start=start,
                    end=end,
                    parent=identities[start] if start else None,
                    label=f"{arm.config.name} {start}-{end}",
                ),
            )
            start = end
    return tuple(segments.values())


def missing_segments(plan: Plan, store: Path) -> list[Segment]:
    """Return the segments that must still be trained for something that is not finished."""
    return [s for s in plan.segments if not is_complete(store / "states" / s.id)]


def missing_runs(group: FinetuneGroup, store: Path) -> list[GridRun]:
    """Return the fine-tunings of a group that have no result yet."""
    return [run for run in group.runs if not is_complete(store / "finetunes" / run.id)]


def check_protocols(plan: Plan, tokenizer: TextTokenizer) -> None:
    """Check that every task can be encoded as its protocol says.

    Raises:
        ConfigError: Question answering has no room for contexts.
    """
    for task in plan.tasks:
        if task.info.kind == "qa":
            check_room(tokenizer, protocol=task.protocol)


def check_inputs(plan: Plan, store: Path) -> None:
    """Check every byte that missing jobs start from and that the report counts, before any runs.

    Raises:
        CheckpointError: A state, a checkpoint or a result is damaged; it is named.
    """
    needed = {segment.parent for segment in missing_segments(plan, store)}
    needed |= {group.state for group in plan.groups if missing_runs(group, store)}
    for identity in sorted(identity for identity in needed if identity):
        folder = store / "states" / identity
        if is_complete(folder):
            verify_folder(folder, remedy="delete this folder and run again")
    for segment in missing_segments(plan, store):
        progress = Progress.of(store, segment.id, start=segment.start)
        latest = progress.latest_step()
        if latest is not None:
            verify_folder(progress.path(latest), remedy="delete this folder and run again")
    for run in (run for group in plan.groups for run in group.runs):
        folder = store / "finetunes" / run.id
        if is_complete(folder):
            verify_folder(folder, remedy="delete this folder and run again")


def _shared_steps(identities: list[str], others: list[str]) -> int:
    """Return how many updates two lineages have in common: -1 if not even the start."""
    pairs = zip(identities, others, strict=False)
    return next(
        (step - 1 for step, (one, other) in enumerate(pairs) if one != other),
        min(len(identities), len(others)) - 1,
    )


def _plan_task(config: StudyConfig, task: TaskConfig, tasks_folder: Path) -> PlannedTask:
    verify_folder(tasks_folder / task.name, remedy="delete this folder and run again")
    loaded = load_task(tasks_folder / task.name)
    return PlannedTask(
        info=loaded.info,
        protocol=config.protocol_of(task),
        num_examples={split: loaded.num_examples(split) for split in SPLITS},
    )


def group_determinants(state: str, task: TaskInfo, protocol: FinetuneProtocol) -> dict[str, Any]:
    """Return all that determines the fine-tunings of a state on a task, rate and seed aside."""
    return {
        "numerics_version": NUMERICS_VERSION,
        "state": state,
        "task": task.name,
        "task_sha256": task.sha256,
        "protocol": protocol.determinants(),
    }


def grid_runs(shared: dict[str, Any], grid: FinetuningConfig) -> tuple[GridRun, ...]:
    """Name every fine-tuning of a grid by all that determines it."""
    return tuple(
        GridRun(
            id=digest({**shared, "learning_rate": rate, "seed": seed}),
            learning_rate=rate,
            seed=seed,
        )
        for rate in grid.learning_rates
        for seed in grid.seeds
    )


def _plan_group(config: StudyConfig, arm: PlannedArm, task: PlannedTask) -> FinetuneGroup:
    shared = group_determinants(arm.state, task.info, task.protocol)
    return FinetuneGroup(
        id=digest(shared),
        state=arm.state,
        task=task,
        runs=grid_runs(shared, config.finetuning),
        label=f"{arm.config.name} on {task.info.name}",
    )
