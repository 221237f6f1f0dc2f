"""Differences between the plans of two studies, by arm and by state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from biphasic.study.inputs.tasks import PlannedTask
from biphasic.study.plan.expansion import Expansion, expand, step_spec
from biphasic.study.plan.plan import Plan
from biphasic.study.plan.preview import Preview
from biphasic.study.plan.tree import StateTree
from biphasic.training.lineage import DataFingerprint
from biphasic.training.recipe import Recipe


@dataclass(frozen=True)
class ArmDifference:
    """An arm of both studies whose final states differ.

    Attributes:
        shared_steps: Number of identical updates; None if the initial states differ.
        reasons: Differences in the first update that is not shared.
        settings: Differences in the recipes as written.
    """

    name: str
    shared_steps: int | None
    reasons: tuple[str, ...]
    settings: tuple[str, ...]


@dataclass(frozen=True)
class SidePlan:
    """The part of a plan that only one of the studies has.

    Attributes:
        arms: Names of the arms whose final state the other study does not have.
        states: Names of intermediate states that are evaluated.
        runs: Number of fine-tunings by task.
    """

    arms: tuple[str, ...]
    states: tuple[str, ...]
    steps: int
    runs: Mapping[str, int]


@dataclass(frozen=True)
class StudyDifference:
    """The differences between two plans.

    Attributes:
        first: What only the first study plans.
        second: What only the second study plans.
        changed: Arms with the same name whose final states differ.
        renamed: Names of the same state in the first study and in the second.
        num_shared: Number of states that both evaluate.
        grid: Differences in the learning rates and seeds of fine-tuning.
        tasks: Differences in the tasks that both have, by name.
    """

    first: SidePlan
    second: SidePlan
    changed: tuple[ArmDifference, ...]
    renamed: tuple[tuple[str, str], ...]
    num_shared: int
    grid: tuple[str, ...]
    tasks: Mapping[str, tuple[str, ...]]

    @property
    def is_empty(self) -> bool:
        """Whether both plan the same."""
        sides = (self.first, self.second)
        return not any(side.states or side.steps or side.runs for side in sides)


def compare_studies(first: Preview, second: Preview) -> StudyDifference:
    """Compare two plans."""
    names = [_names(preview.plan) for preview in (first, second)]
    shared = names[0].keys() & names[1].keys()
    ends = [{arm.config.name: arm for arm in o.plan.arms} for o in (first, second)]
    changed = tuple(
        _part(
            name,
            arm.lineage.recipe,
            ends[1][name].lineage.recipe,
            first.fingerprint,
            second.fingerprint,
        )
        for name, arm in ends[0].items()
        if name in ends[1] and arm.state != ends[1][name].state
    )
    changed_names = {difference.name for difference in changed}
    steps = _own_steps(first, second)
    return StudyDifference(
        first=_only(first.plan, second.plan, changed=changed_names, steps=steps[0]),
        second=_only(second.plan, first.plan, changed=changed_names, steps=steps[1]),
        changed=changed,
        renamed=tuple(
            (name, names[1][state])
            for state, name in names[0].items()
            if state in shared and names[1][state] != name
        ),
        num_shared=len(shared),
        grid=tuple(_differences(_grid(first.plan), _grid(second.plan), "")),
        tasks=_changed_tasks(first.plan, second.plan),
    )


def _grid(plan: Plan) -> dict[str, str]:
    """Return the learning rates and seeds of fine-tuning."""
    points = {point for group in plan.groups for point in group.grid if point[0]}
    rates, seeds = ({point[axis] for point in points} for axis in (0, 1))
    return {
        "learning_rates": ", ".join(f"{rate:g}" for rate in sorted(rates)),
        "seeds": ", ".join(map(str, sorted(seeds))),
    }


def _changed_tasks(plan: Plan, other: Plan) -> dict[str, tuple[str, ...]]:
    """Return the differences in each task that both plans have; equal tasks are left out."""
    others = {task.info.name: task for task in other.tasks}
    differences = {
        task.info.name: tuple(_differences(_task(task), _task(others[task.info.name]), ""))
        for task in plan.tasks
        if task.info.name in others
    }
    return {name: reasons for name, reasons in differences.items() if reasons}


def _task(task: PlannedTask) -> dict[str, Any]:
    """Return what determines the fine-tunings on a task, besides state, rate and seed."""
    settings = {"examples": task.info.sha256, "protocol": task.protocol.determinants()}
    return settings if task.trainer is None else {**settings, "trained_on": _task(task.trainer)}


def _names(plan: Plan) -> dict[str, str]:
    """Return the first name of each evaluated state."""
    names: dict[str, str] = {}
    for point in plan.points:
        names.setdefault(point.state, point.name)
    return names


def _only(plan: Plan, other: Plan, *, changed: set[str], steps: int) -> SidePlan:
    states = {point.state for point in other.points}
    points = [point for point in plan.points if point.state not in states]
    runs: dict[str, int] = {}
    other_runs = {run.id for group in other.groups for run in group.all_runs}
    for group in plan.groups:
        for name, task_runs in group.runs.items():
            if count := sum(run.id not in other_runs for run in task_runs):
                runs[name] = runs.get(name, 0) + count
    ends = [point.arm.name for point in points if point.is_final]
    return SidePlan(
        arms=tuple(name for name in ends if name not in changed),
        states=tuple(point.name for point in points if not point.is_final),
        steps=steps,
        runs=runs,
    )


def _own_steps(first: Preview, second: Preview) -> tuple[int, int]:
    """Return the number of updates that only the first and only the second plan have."""
    tree = StateTree()
    ends = [
        [
            tree.add(expand(arm.lineage.recipe, preview.fingerprint)).popitem()[1]
            for arm in preview.plan.arms
        ]
        for preview in (first, second)
    ]
    trained = [
        {id(node): node.step - (node.parent.step if node.parent else 0) for node in nodes}
        for nodes in ([node for end in side for node in end.path()] for side in ends)
    ]
    one, other = trained
    return (
        sum(steps for node, steps in one.items() if node not in other),
        sum(steps for node, steps in other.items() if node not in one),
    )


def _part(
    name: str, one: Recipe, other: Recipe, fingerprint: DataFingerprint, others: DataFingerprint
) -> ArmDifference:
    settings = tuple(_differences(one.model_dump(mode="json"), other.model_dump(mode="json"), ""))
    first, second = expand(one, fingerprint), expand(other, others)
    if first.root != second.root:
        reasons = _differences(_beginning(one, fingerprint), _beginning(other, others), "")
        return ArmDifference(name, None, tuple(reasons), settings)
    shared = shared_steps(first, second)
    totals = (one.total_steps, other.total_steps)
    if shared == min(totals):
        return ArmDifference(name, shared, ("one of them ends there",), settings)
    specs = [
        step_spec(recipe.phase_at(shared), shared, recipe, data).determinants()
        for recipe, data in ((one, fingerprint), (other, others))
    ]
    return ArmDifference(name, shared, tuple(_differences(specs[0], specs[1], "")), settings)


def shared_steps(one: Expansion, other: Expansion) -> int:
    """Return how many updates two runs with the same initial state share."""
    shared = 0
    for (text, count), (text2, count2) in zip(one.stretches, other.stretches, strict=False):
        if text != text2:
            return shared
        shared += min(count, count2)
        if count != count2:
            return shared
    return shared


def _beginning(recipe: Recipe, fingerprint: DataFingerprint) -> dict[str, Any]:
    architecture = recipe.architecture
    model = fingerprint.pretrained if architecture is None else architecture.model_dump()
    return {
        "model": model,
        "max_seqlen": recipe.max_seqlen,
        "init_seed": recipe.seeds.init_seed,
        "tokenizer": fingerprint.tokenizer_sha256[:12],
        "vocab_size": fingerprint.vocab_size,
    }


def _differences(one: Any, other: Any, where: str) -> Iterator[str]:
    """Yield each difference with the path of its setting."""
    if one == other:
        return
    if isinstance(one, list) and isinstance(other, list):
        one, other = (dict(enumerate(items)) for items in (one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in dict.fromkeys((*one, *other)):
            path = f"{where}.{key}" if where else str(key)
            yield from _differences(one.get(key), other.get(key), path)
        return
    yield f"{where}: {_shown(one)} -> {_shown(other)}"


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, str) and len(value) == 64:
        return value[:12]
    return f"{value:g}" if isinstance(value, float) else str(value)


def difference_lines(difference: StudyDifference, first: str, second: str) -> Iterator[str]:
    """Yield the lines that describe a difference."""
    if difference.is_empty:
        yield "both studies plan the same"
    for arm in difference.changed:
        shared = arm.shared_steps
        branch = "from the beginning" if shared is None else f"after step {shared:,}"
        yield f"{arm.name}: differs {branch}: {'; '.join(arm.reasons)}"
        if arm.settings:
            yield f"  settings: {'; '.join(arm.settings)}"
    if difference.grid:
        yield f"fine-tuning: {'; '.join(difference.grid)}"
    for task, reasons in difference.tasks.items():
        yield f"task {task}: {'; '.join(reasons)}"
    for name, side in ((first, difference.first), (second, difference.second)):
        if side.arms:
            yield f"only {name}: arms {', '.join(side.arms)}"
        if side.states:
            yield f"only {name}: intermediate states {', '.join(side.states)}"
        if side.steps:
            yield f"only {name}: {side.steps:,} steps of training"
        if side.runs:
            counts = ", ".join(f"{task} {count:,}" for task, count in side.runs.items())
            yield f"only {name}: {sum(side.runs.values()):,} fine-tunings ({counts})"
    for old, new in difference.renamed:
        yield f"same state: {old} in {first}, {new} in {second}"
    yield f"shared: {difference.num_shared:,} evaluated states"
