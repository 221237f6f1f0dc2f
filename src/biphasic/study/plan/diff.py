"""What one study plans that another does not, by arm and by state, and why."""

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
    """An arm that both studies have and that ends with another state.

    Attributes:
        name: Of the arm.
        shared_steps: Updates that are the same; None where not even the beginning is.
        reasons: What differs in the update after them.
        settings: What differs in the recipes as written.
    """

    name: str
    shared_steps: int | None
    reasons: tuple[str, ...]
    settings: tuple[str, ...]


@dataclass(frozen=True)
class SidePlan:
    """What only one of the studies plans.

    Attributes:
        arms: Arms by name, whose state the other study has under no name.
        states: States that are evaluated, by name.
        steps: Optimizer updates.
        runs: Fine-tunings with their scores, by task.
    """

    arms: tuple[str, ...]
    states: tuple[str, ...]
    steps: int
    runs: Mapping[str, int]


@dataclass(frozen=True)
class StudyDifference:
    """How two plans differ.

    Attributes:
        first: What only the first study plans.
        second: What only the second one does.
        changed: Arms of one name that end with other states.
        renamed: Names of the same state in the first study and in the second.
        num_shared: States that both evaluate.
        grid: What differs in the rates and seeds of fine-tuning.
        tasks: What differs in the tasks that both have, by name.
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
    own = {each.name for each in changed}
    steps = _own_steps(first, second)
    return StudyDifference(
        first=_only(first.plan, second.plan, changed=own, steps=steps[0]),
        second=_only(second.plan, first.plan, changed=own, steps=steps[1]),
        changed=changed,
        renamed=tuple(
            (name, names[1][state])
            for state, name in names[0].items()
            if state in shared and names[1][state] != name
        ),
        num_shared=len(shared),
        grid=tuple(_told(_grid(first.plan), _grid(second.plan), "")),
        tasks=_changed_tasks(first.plan, second.plan),
    )


def _grid(plan: Plan) -> dict[str, str]:
    """Return the rates and seeds of all that is fine-tuned."""
    points = {point for group in plan.groups for point in group.grid if point[0]}
    rates, seeds = ({point[axis] for point in points} for axis in (0, 1))
    return {
        "learning_rates": ", ".join(f"{rate:g}" for rate in sorted(rates)),
        "seeds": ", ".join(map(str, sorted(seeds))),
    }


def _changed_tasks(plan: Plan, other: Plan) -> dict[str, tuple[str, ...]]:
    """Return what differs in each task that both plans have, if anything does."""
    others = {task.info.name: task for task in other.tasks}
    found = {
        task.info.name: tuple(_told(_task(task), _task(others[task.info.name]), ""))
        for task in plan.tasks
        if task.info.name in others
    }
    return {name: reasons for name, reasons in found.items() if reasons}


def _task(task: PlannedTask) -> dict[str, Any]:
    """Return what names the fine-tunings on a task, beside state, rate and seed."""
    own = {"examples": task.info.sha256, "protocol": task.protocol.determinants()}
    return own if task.trainer is None else {**own, "trained_on": _task(task.trainer)}


def _names(plan: Plan) -> dict[str, str]:
    """Return what evaluated states are called; of several names, the first."""
    found: dict[str, str] = {}
    for point in plan.points:
        found.setdefault(point.state, point.name)
    return found


def _only(plan: Plan, other: Plan, *, changed: set[str], steps: int) -> SidePlan:
    states = {point.state for point in other.points}
    own = [point for point in plan.points if point.state not in states]
    runs: dict[str, int] = {}
    there = {run.id for group in other.groups for run in group.all_runs}
    for group in plan.groups:
        for name, found in group.runs.items():
            if count := sum(run.id not in there for run in found):
                runs[name] = runs.get(name, 0) + count
    ends = [point.arm.name for point in own if point.is_final]
    return SidePlan(
        arms=tuple(name for name in ends if name not in changed),
        states=tuple(point.name for point in own if not point.is_final),
        steps=steps,
        runs=runs,
    )


def _own_steps(first: Preview, second: Preview) -> tuple[int, int]:
    """Return the updates that only one plan has, wherever the other one stops on the way."""
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
    settings = tuple(_told(one.model_dump(mode="json"), other.model_dump(mode="json"), ""))
    first, second = expand(one, fingerprint), expand(other, others)
    if first.root != second.root:
        reasons = _told(_beginning(one, fingerprint), _beginning(other, others), "")
        return ArmDifference(name, None, tuple(reasons), settings)
    shared = shared_steps(first, second)
    totals = (one.total_steps, other.total_steps)
    if shared == min(totals):
        return ArmDifference(name, shared, ("one of them ends there",), settings)
    specs = [
        step_spec(recipe.phase_at(shared), shared, recipe, each).determinants()
        for recipe, each in ((one, fingerprint), (other, others))
    ]
    return ArmDifference(name, shared, tuple(_told(specs[0], specs[1], "")), settings)


def shared_steps(one: Expansion, other: Expansion) -> int:
    """Return how many updates two runs with the same beginning have in common."""
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
    begins = fingerprint.pretrained if architecture is None else architecture.model_dump()
    return {
        "model": begins,
        "max_seqlen": recipe.max_seqlen,
        "init_seed": recipe.seeds.init_seed,
        "tokenizer": fingerprint.tokenizer_sha256[:12],
        "vocab_size": fingerprint.vocab_size,
    }


def _told(one: Any, other: Any, where: str) -> Iterator[str]:
    """Yield what differs, by the place of each setting."""
    if one == other:
        return
    if isinstance(one, list) and isinstance(other, list):
        one, other = (dict(enumerate(items)) for items in (one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in dict.fromkeys((*one, *other)):
            yield from _told(one.get(key), other.get(key), f"{where}.{key}" if where else str(key))
        return
    yield f"{where}: {_shown(one)} -> {_shown(other)}"


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, str) and len(value) == 64:
        return value[:12]
    return f"{value:g}" if isinstance(value, float) else str(value)


def difference_lines(found: StudyDifference, first: str, second: str) -> Iterator[str]:
    """Yield the lines that describe a difference.

    Args:
        found: The difference.
        first: What to call the first study.
        second: What to call the second one.
    """
    if found.is_empty:
        yield "both plan the same"
    for each in found.changed:
        parted = (
            "from the beginning"
            if each.shared_steps is None
            else f"after step {each.shared_steps:,}"
        )
        yield f"{each.name}: parts {parted}: {'; '.join(each.reasons)}"
        if each.settings:
            yield f"  set otherwise: {'; '.join(each.settings)}"
    if found.grid:
        yield f"fine-tuning: {'; '.join(found.grid)}"
    for task, reasons in found.tasks.items():
        yield f"task {task}: {'; '.join(reasons)}"
    for name, side in ((first, found.first), (second, found.second)):
        yield from _side_lines(name, side)
    for old, new in found.renamed:
        yield f"same state: {old} in {first}, {new} in {second}"
    yield f"shared: {found.num_shared:,} evaluated states"


def _side_lines(name: str, side: SidePlan) -> Iterator[str]:
    if side.arms:
        yield f"only {name}: arms {', '.join(side.arms)}"
    if side.states:
        yield f"only {name}: on the way {', '.join(side.states)}"
    if side.steps:
        yield f"only {name}: {side.steps:,} steps of training"
    if side.runs:
        told = ", ".join(f"{task} {count:,}" for task, count in side.runs.items())
        yield f"only {name}: {sum(side.runs.values()):,} fine-tunings ({told})"
