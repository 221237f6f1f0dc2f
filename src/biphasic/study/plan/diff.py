"""Differences between the plans of two studies: settings, and what only one of them computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from biphasic.amounts import count, rate
from biphasic.study.inputs.tasks import PlannedTask
from biphasic.study.plan.plan import Plan, PlannedArm
from biphasic.study.plan.tree import Node, StateTree
from biphasic.training.lineage import Lineage


def difference_lines(first: Plan, second: Plan, first_name: str, second_name: str) -> Iterator[str]:
    """Yield the lines that describe how two plans differ."""
    plans = first, second
    one, other = ({arm.name: arm for arm in plan.arms} for plan in plans)
    both = [(arm, other[name]) for name, arm in one.items() if name in other]
    lines = [line for arms in both for line in _arm_lines(*arms)]
    lines += _differences(_grid(first), _grid(second), "finetuning")
    tasks, other_tasks = ({task.info.name: _task(task) for task in p.tasks} for p in plans)
    for name in tasks:
        if name in other_tasks:
            lines += _differences(tasks[name], other_tasks[name], f"task {name}")
    own = _only(first, second, skipped={arm.name for arm, _ in both})
    lines += [
        f"only {name}: {line}"
        for name, of in zip((first_name, second_name), own, strict=True)
        for line in of
    ]
    yield from lines or ["both studies plan the same"]
    names, others = ({point.state: point.name for point in reversed(plan.points)} for plan in plans)
    shared = [(old, others[state]) for state, old in reversed(names.items()) if state in others]
    for old, new in shared:
        if old != new:
            yield f"same state: {old} in {first_name}, {new} in {second_name}"
    yield f"shared: {len(shared):,} evaluated states"


def _arm_lines(one: PlannedArm, other: PlannedArm) -> Iterator[str]:
    """Yield the differences of two arms, and the step up to which they are one run."""
    reasons = [*_differences(_arm(one), _arm(other))]
    if one.state != other.state and not (one.encoder or other.encoder):
        first, second = _nodes([one.lineage], [other.lineage])
        shared = max((node.step for node in first & second), default=None)
        until = "from the beginning" if shared is None else f"after step {shared:,}"
        reasons.insert(0, f"differs {until}")
    if reasons:
        yield f"{one.name}: {'; '.join(reasons)}"


def _arm(arm: PlannedArm) -> dict[str, Any]:
    data = arm.lineage.fingerprint
    settings = arm.recipe.model_dump(mode="json") if arm.encoder is None else {}
    return {
        **settings,
        "attention": arm.config.attention,
        "encoder": arm.encoder and arm.encoder.identity,
        "corpus": data.corpus_hash,
        "corpora": data.corpora,
        "tokenizer": data.tokenizer_sha256,
        "vocab_size": data.vocab_size,
        "pretrained": data.pretrained,
    }


def _grid(plan: Plan) -> dict[str, Any]:
    points = {point for group in plan.groups for point in group.grid if point[0]}
    rates, seeds = (sorted({point[axis] for point in points}) for axis in (0, 1))
    return {
        "learning_rates": ", ".join(map(rate, rates)),
        "seeds": ", ".join(map(str, seeds)),
        "extend": plan.study.config.finetuning.extend,
    }


def _task(task: PlannedTask) -> dict[str, Any]:
    """Return what determines the fine-tunings on a task, besides state, rate and seed."""
    settings = {"examples": task.info.sha256, "protocol": task.determinants}
    return settings if task.trainer is None else {**settings, "trained_on": _task(task.trainer)}


def _only(first: Plan, second: Plan, *, skipped: set[str]) -> Iterator[list[str]]:
    """Yield what only the first and only the second plan has; arms of both are `skipped`."""
    one, two = _nodes(
        *([a.lineage for a in plan.arms if a.encoder is None] for plan in (first, second))
    )
    for plan, other, own in ((first, second, one - two), (second, first, two - one)):
        states, runs = {point.state for point in other.points}, {*other.run_ids()}
        points = [point for point in plan.points if point.state not in states]
        arms = [p.arm.name for p in points if p.is_final and p.arm.name not in skipped]
        between = [point.name for point in points if not point.is_final]
        steps = sum(node.step - node.parent.step for node in own if node.parent)
        scores = sum(run not in runs for run in plan.run_ids())
        lines = {
            f"arms {', '.join(arms)}": arms,
            f"intermediate states {', '.join(between)}": between,
            f"{count(steps, 'step')} of training": steps,
            count(scores, "fine-tuning"): scores,
        }
        yield [line for line, is_there in lines.items() if is_there]


def _nodes(*sides: Iterable[Lineage]) -> list[set[Node]]:
    """Return for each side the nodes on the ways to the ends of its runs, all in one tree."""
    tree = StateTree()
    ends = [[tree.add(lineage).popitem()[1] for lineage in side] for side in sides]
    return [{node for end in of_side for node in end.path()} for of_side in ends]


def _differences(one: Any, other: Any, where: str = "") -> Iterator[str]:
    """Yield each difference of two trees of settings, with its path."""
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
    if isinstance(value, str) and len(value) == 64:
        return value[:12]
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
