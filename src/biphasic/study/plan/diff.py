"""Differences between the plans of two studies, by arm and by state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from biphasic.amounts import rate
from biphasic.study.inputs.tasks import PlannedTask
from biphasic.study.plan.plan import Plan, PlannedArm
from biphasic.study.plan.tree import Node, StateTree
from biphasic.training.lineage import Lineage, step_spec


def difference_lines(first: Plan, second: Plan, first_name: str, second_name: str) -> Iterator[str]:
    """Yield the lines that describe how two plans differ."""
    others = {arm.name: arm for arm in second.arms}
    changed = {
        arm.name: [*_arm_lines(arm, other)]
        for arm in first.arms
        if (other := others.get(arm.name)) and arm.state != other.state
    }
    steps = _own_steps(first, second)
    first_side = _only(first, second, steps[0])
    second_side = _only(second, first, steps[1])
    if not any(lines for _, lines in (first_side, second_side)):
        yield "both studies plan the same"
    for lines in changed.values():
        yield from lines
    for arm in first.arms:
        one, other = (each.config.attention for each in (arm, others.get(arm.name, arm)))
        yield from _differences(one, other, f"{arm.name}: attention")
    if grid := [*_differences(_grid(first), _grid(second))]:
        yield f"fine-tuning: {'; '.join(grid)}"
    other_tasks = {task.info.name: _task(task) for task in second.tasks}
    for task in first.tasks:
        name = task.info.name
        if reasons := [*_differences(of_task := _task(task), other_tasks.get(name, of_task))]:
            yield f"task {name}: {'; '.join(reasons)}"
    for name, (ends, lines) in ((first_name, first_side), (second_name, second_side)):
        if arms := [end for end in ends if end not in changed]:
            yield f"only {name}: arms {', '.join(arms)}"
        for line in lines:
            yield f"only {name}: {line}"
    names, others = _names(first), _names(second)
    shared = [(old, others[state]) for state, old in names.items() if state in others]
    for old, new in shared:
        if old != new:
            yield f"same state: {old} in {first_name}, {new} in {second_name}"
    yield f"shared: {len(shared):,} evaluated states"


def _arm_lines(arm: PlannedArm, other_arm: PlannedArm) -> Iterator[str]:
    """Yield the differences in the first update that two arms do not share, and in settings."""
    name, one, other = arm.name, arm.lineage, other_arm.lineage
    if arm.encoder or other_arm.encoder:
        yield f"{name}: another finished encoder"
        return
    first, second = _nodes([one], [other])
    shared = max((node.step for node in first & second), default=None)
    branch = f"after step {shared:,}" if shared is not None else "from the beginning"
    if shared is None:
        reasons = _differences(_beginning(one), _beginning(other))
    elif shared == min(one.recipe.total_steps, other.recipe.total_steps):
        reasons = iter(["one of them ends there"])
    else:
        reasons = _differences(_update(one, shared), _update(other, shared))
    yield f"{name}: differs {branch}: {'; '.join(reasons)}"
    recipe, other_recipe = (each.recipe.model_dump(mode="json") for each in (one, other))
    if settings := [*_differences(recipe, other_recipe)]:
        yield f"  settings: {'; '.join(settings)}"


def _grid(plan: Plan) -> dict[str, str]:
    """Return the learning rates and seeds of fine-tuning."""
    points = {point for group in plan.groups for point in group.grid if point[0]}
    rates, seeds = ({point[axis] for point in points} for axis in (0, 1))
    return {
        "learning_rates": ", ".join(map(rate, sorted(rates))),
        "seeds": ", ".join(map(str, sorted(seeds))),
        "extend": str(plan.study.config.finetuning.extend),
    }


def _task(task: PlannedTask) -> dict[str, Any]:
    """Return what determines the fine-tunings on a task, besides state, rate and seed."""
    settings = {"examples": task.info.sha256, "protocol": task.determinants}
    return settings if task.trainer is None else {**settings, "trained_on": _task(task.trainer)}


def _names(plan: Plan) -> dict[str, str]:
    """Return the first name of each evaluated state."""
    names: dict[str, str] = {}
    for point in plan.points:
        names.setdefault(point.state, point.name)
    return names


def _only(plan: Plan, other: Plan, steps: int) -> tuple[list[str], list[str]]:
    """Return what only one plan has: the arms' ends, and lines about everything else."""
    states = {point.state for point in other.points}
    points = [point for point in plan.points if point.state not in states]
    lines: list[str] = []
    if between := [point.name for point in points if not point.is_final]:
        lines.append(f"intermediate states {', '.join(between)}")
    if steps:
        lines.append(f"{steps:,} steps of training")
    runs: Counter[str] = Counter()
    other_runs = set(other.run_ids())
    for group in plan.groups:
        for name, task_runs in group.runs.items():
            if count := sum(run.id not in other_runs for run in task_runs):
                runs[name] += count
    if runs:
        counts = ", ".join(f"{task} {count:,}" for task, count in runs.items())
        lines.append(f"{runs.total():,} fine-tunings ({counts})")
    return [point.arm.name for point in points if point.is_final], lines


def _own_steps(first: Plan, second: Plan) -> list[int]:
    """Return the number of updates that only the first and only the second plan have."""
    one, other = _nodes(
        *([a.lineage for a in plan.arms if a.encoder is None] for plan in (first, second))
    )
    return [
        sum(node.step - node.parent.step for node in nodes if node.parent)
        for nodes in (one - other, other - one)
    ]


def _nodes(*sides: Iterable[Lineage]) -> list[set[Node]]:
    """Return for each side the nodes on the ways to the ends of its runs, all in one tree."""
    tree = StateTree()
    ends = [[tree.add(lineage).popitem()[1] for lineage in side] for side in sides]
    return [{node for end in of_side for node in end.path()} for of_side in ends]


def _update(lineage: Lineage, step: int) -> dict[str, Any]:
    """Return what determines the update after some steps."""
    recipe = lineage.recipe
    return step_spec(recipe.phase_at(step), step, recipe, lineage.fingerprint).determinants()


def _beginning(lineage: Lineage) -> dict[str, Any]:
    recipe, fingerprint = lineage.recipe, lineage.fingerprint
    architecture = recipe.architecture
    return {
        "model": fingerprint.pretrained if architecture is None else architecture.model_dump(),
        "max_seqlen": recipe.max_seqlen,
        "init_seed": recipe.seeds.init_seed,
        "tokenizer": fingerprint.tokenizer_sha256[:12],
        "vocab_size": fingerprint.vocab_size,
    }


def _differences(one: Any, other: Any, where: str = "") -> Iterator[str]:
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
