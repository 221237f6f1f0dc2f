"""Plan summaries: counts and costs, for `text.py` and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from biphasic.study.plan.cost import (
    EXAMPLE_TOKENS,
    Cost,
    finetuning_flops,
    segment_cost,
    state_bytes,
    training_cost,
)
from biphasic.study.plan.finished import Finished
from biphasic.study.plan.plan import Plan
from biphasic.study.plan.preview import Preview

FORMAT = "biphasic.plan/1"


@dataclass(frozen=True)
class GroupSummary:
    """A group of the study's arms.

    Attributes:
        name: The group; empty for arms without one.
        alone: Total cost if each arm were trained separately.
        new: Cost of the training that they do not share with an earlier arm.
    """

    name: str
    num_arms: int
    alone: Cost
    new: Cost


@dataclass(frozen=True)
class TaskSummary:
    """A task, and the task that encoders are trained on for it."""

    name: str
    kind: str
    trained_on: str
    num_runs: int


@dataclass(frozen=True)
class Done:
    """The finished part of a plan."""

    states: int
    steps: int
    results: int


@dataclass(frozen=True)
class PlanSummary:
    """Counts and costs of a plan.

    Attributes:
        num_final: States at the end of arms; equal arms share one.
        num_checkpoints: All states that are evaluated.
        num_states: All states that are saved, branching points included.
        num_segments: Segments that train at least one step.
        alone: Cost of all arms without sharing.
        shared: Cost with sharing.
        num_trainings: Fine-tunings.
        num_evaluations: Scores of a fine-tuned encoder on a task.
        finetuning_steps: Upper bound of the optimizer updates of all fine-tunings.
        finetuning_flops: Estimated FLOPs of all fine-tunings; None if unknown.
        state_bytes: Size of all states on disk.
        left: Cost of the missing states.
        assumed: A sentence for each placeholder.
    """

    name: str
    groups: tuple[GroupSummary, ...]
    num_final: int
    num_checkpoints: int
    num_states: int
    num_segments: int
    alone: Cost
    shared: Cost
    tasks: tuple[TaskSummary, ...]
    num_trainings: int
    num_evaluations: int
    finetuning_steps: int
    finetuning_flops: int | None
    state_bytes: int | None
    done: Done
    left: Cost
    assumed: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def num_reused(self) -> int:
        """Evaluations that reuse the fine-tuning of another task."""
        return self.num_evaluations - self.num_trainings

    def hours(self, flops: int | None, *, rate: float) -> float | None:
        """Return the device-hours of a number of FLOPs at a rate in FLOP/s."""
        return None if flops is None else flops / rate / 3600


def summarise_plan(
    name: str, preview: Preview, store: Path, *, example_tokens: int = EXAMPLE_TOKENS
) -> PlanSummary:
    """Count a plan.

    `example_tokens` is the mean length of a fine-tuning example.
    """
    plan, vocab_size = preview.plan, preview.plan.fingerprint.vocab_size
    costs = {s.id: segment_cost(s, vocab_size) for s in plan.segments}
    groups = _groups(plan, costs)
    finished = Finished.of(store)
    missing = finished.missing_segments(plan)
    trained = [segment for segment in plan.segments if segment.id in finished.states]
    return PlanSummary(
        name=name,
        groups=groups,
        num_final=len({point.state for point in plan.points if point.is_final}),
        num_checkpoints=len({point.state for point in plan.points}),
        num_states=len(plan.segments),
        num_segments=sum(segment.steps > 0 for segment in plan.segments),
        alone=sum((group.alone for group in groups), Cost()),
        shared=sum(costs.values(), Cost()),
        tasks=_tasks(plan),
        num_trainings=sum(len(group.grid) for group in plan.groups if not group.is_zero_shot),
        num_evaluations=sum(group.num_runs for group in plan.groups),
        finetuning_steps=sum(len(g.grid) * g.num_steps for g in plan.groups),
        finetuning_flops=_total(finetuning_flops(plan, example_tokens).values()),
        state_bytes=_total(state_bytes(s.recipe, vocab_size=vocab_size) for s in plan.segments),
        done=Done(
            states=len(trained),
            steps=sum(segment.steps for segment in trained),
            results=sum(1 for _ in finished.results_of(plan)),
        ),
        left=sum((costs[segment.id] for segment in missing), Cost()),
        assumed=preview.assumed,
        notes=preview.notes,
    )


def summary_json(summary: PlanSummary, plan: Plan, *, rate: float) -> dict[str, Any]:
    """Return a summary as JSON, with a list of its states and segments."""
    hours = {
        "training": summary.hours(summary.shared.flops, rate=rate),
        "training_without_sharing": summary.hours(summary.alone.flops, rate=rate),
        "training_left": summary.hours(summary.left.flops, rate=rate),
        "fine_tuning": summary.hours(summary.finetuning_flops, rate=rate),
    }
    return {
        "format": FORMAT,
        **asdict(summary),
        "rate": rate,
        "device_hours": hours,
        "points": [
            {
                "name": p.name,
                "arm": p.arm.name,
                "step": p.step,
                "state": p.state,
                "final": p.is_final,
            }
            for p in plan.points
        ],
        "segments": [
            {"state": s.id, "parent": s.parent, "start": s.start, "end": s.end, "arm": s.arm}
            for s in plan.segments
        ],
    }


def _groups(plan: Plan, costs: dict[str, Cost]) -> tuple[GroupSummary, ...]:
    vocab_size = plan.fingerprint.vocab_size
    group_names = {arm.config.name: arm.config.group for arm in plan.arms}
    groups: dict[str, GroupSummary] = {}
    for arm in plan.arms:
        recipe, name = arm.lineage.recipe, arm.config.group
        cost = training_cost(recipe, start=0, end=recipe.total_steps, vocab_size=vocab_size)
        before = groups.get(name, GroupSummary(name, 0, Cost(), Cost()))
        groups[name] = replace(before, num_arms=before.num_arms + 1, alone=before.alone + cost)
    for segment in plan.segments:
        name = group_names[segment.arm]
        groups[name] = replace(groups[name], new=groups[name].new + costs[segment.id])
    return tuple(groups.values())


def _tasks(plan: Plan) -> tuple[TaskSummary, ...]:
    runs: Counter[str] = Counter()
    for group in plan.groups:
        runs.update({task.info.name: len(group.grid) for task in group.evaluations})
    return tuple(
        TaskSummary(
            name=task.info.name,
            kind=task.info.kind,
            trained_on=task.training.info.name,
            num_runs=runs[task.info.name],
        )
        for task in plan.tasks
    )


def _total(numbers: Iterable[int | None]) -> int | None:
    """Return the sum; None if a number is unknown."""
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total
