"""Plan summaries: counts and costs, as lines of text and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from biphasic.amounts import count, rate
from biphasic.data.building.config import short_corpus_name
from biphasic.plugins import short_name
from biphasic.records import SEED_STREAMS, fixed_streams
from biphasic.shown import Shown
from biphasic.store import STATE, Store
from biphasic.study import EXAMPLE_TOKENS, lines_of
from biphasic.study.inputs.tasks import PlannedTask
from biphasic.study.plan.cost import Cost, job_costs, state_bytes, training_cost
from biphasic.study.plan.finished import Finished, plan_notes
from biphasic.study.plan.plan import Plan, PlannedArm, Segment
from biphasic.study.plan.tree import Node, StateTree
from biphasic.tasks.kinds.registry import KINDS
from biphasic.training.lineage import Lineage

FORMAT = "biphasic.plan/1"


@dataclass(frozen=True)
class GroupSummary:
    """A group of the study's arms."""

    name: str  # The group; empty for arms without one.
    num_arms: int
    alone: Cost  # Total cost if each arm were trained separately.
    new: Cost  # Cost of the training that they do not share with an earlier arm.


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
    """Counts and costs of a plan."""

    name: str
    groups: tuple[GroupSummary, ...]
    num_final: int  # States at the end of arms; equal arms share one.
    num_checkpoints: int  # All states that are evaluated.
    num_states: int  # All states that are saved, branching points included.
    num_segments: int  # Segments that train at least one step.
    alone: Cost  # Cost of all arms without sharing.
    shared: Cost  # Cost with sharing.
    tasks: tuple[TaskSummary, ...]
    num_trainings: int  # Fine-tunings, with all that may be due beyond the grid.
    num_beyond: int  # Those of them that are beyond the grid, and due if validation asks for them.
    num_evaluations: int  # Scores of a fine-tuned encoder on a task.
    finetuning_steps: int  # Upper bound of the optimizer updates of all fine-tunings.
    finetuning_flops: int | None  # Estimated FLOPs of all fine-tunings; None if unknown.
    state_bytes: int | None  # Size of all states on disk.
    done: Done
    left: Cost  # Cost of the missing states.
    assumed: tuple[str, ...]  # A sentence for each placeholder.
    notes: tuple[str, ...]

    @property
    def num_reused(self) -> int:
        """Evaluations that reuse the fine-tuning of another task."""
        trained = (task for task in self.tasks if KINDS[task.kind].facts.is_trained)
        return sum(task.num_runs for task in trained) - self.num_trainings


def summarise_plan(plan: Plan, *, example_tokens: int = EXAMPLE_TOKENS) -> PlanSummary:
    """Count a plan; `example_tokens` is the mean length of a fine-tuning example."""
    costs = job_costs(plan, example_tokens)
    groups, tasks, finished = _groups(plan, costs), _tasks(plan), Finished.of(plan)
    missing = finished.missing_segments()
    trainings = [group for group in plan.groups if group.training.is_trained]
    finetuning = sum((costs[group.id] for group in trainings), Cost())
    sizes = [
        state_bytes(segment.arm.recipe, vocab_size=segment.arm.vocab_size, end=segment.end)
        for segment in plan.segments
    ]
    left = {segment.id for segment in missing}
    trained = [segment for segment in plan.segments if segment.id not in left]
    return PlanSummary(
        name=plan.study.config.name,
        groups=groups,
        num_final=len({point.state for point in plan.points if point.is_final}),
        num_checkpoints=len({point.state for point in plan.points}),
        num_states=len(plan.segments),
        num_segments=sum(segment.steps > 0 for segment in plan.segments),
        alone=sum((group.alone for group in groups), Cost()),
        shared=sum((costs[segment.id] for segment in plan.segments), Cost()),
        tasks=tasks,
        num_trainings=sum(group.most for group in trainings),
        num_beyond=sum(len(group.beyond) for group in trainings),
        num_evaluations=sum(task.num_runs for task in tasks),
        finetuning_steps=finetuning.steps,
        finetuning_flops=finetuning.flops,
        state_bytes=None if None in sizes else sum(filter(None, sizes)),
        done=Done(
            states=len(trained),
            steps=sum(segment.steps for segment in trained),
            results=sum(1 for _ in finished.planned_results()),
        ),
        left=sum((costs[segment.id] for segment in missing), Cost()),
        assumed=plan.assumed,
        notes=plan_notes(plan),
    )


def _groups(plan: Plan, costs: dict[str, Cost]) -> tuple[GroupSummary, ...]:
    groups: dict[str, GroupSummary] = {}
    for arm in plan.arms:
        name, end = arm.config.group, arm.recipe.total_steps
        cost = training_cost(arm.recipe, start=0, end=end, vocab_size=arm.vocab_size)
        before = groups.get(name, GroupSummary(name, 0, Cost(), Cost()))
        groups[name] = replace(before, num_arms=before.num_arms + 1, alone=before.alone + cost)
    # A shared segment is counted in the group of the arm that trains it first.
    for segment in plan.segments:
        name = segment.arm.config.group
        groups[name] = replace(groups[name], new=groups[name].new + costs[segment.id])
    return tuple(groups.values())


def _tasks(plan: Plan) -> tuple[TaskSummary, ...]:
    runs: Counter[str] = Counter()
    for group in plan.groups:
        runs.update({task.info.name: group.most for task in group.evaluations})
    return tuple(
        TaskSummary(
            name=task.info.name,
            kind=task.info.kind,
            trained_on=task.training.info.name,
            num_runs=runs[task.info.name],
        )
        for task in plan.tasks
    )


def _runs(plan: Plan) -> Iterator[tuple[list[str], list[str], list[int]]]:
    """Yield what pretraining runs of recipes vary, what they fix, and their numbers by recipe."""
    runs: dict[str, list[Sequence[int]]] = {}
    recipes = plan.study.config.recipes_by_state()
    for arm in plan.arms:
        seeds = arm.recipe.seeds.model_dump()
        of_recipe = runs.setdefault(recipes[arm.name], [])
        of_recipe.append([seeds[stream] for stream in SEED_STREAMS])
    by_what: dict[tuple[str, ...], list[int]] = {}
    for of_recipe in runs.values():
        if len(of_recipe) > 1:
            by_what.setdefault(tuple(fixed_streams(of_recipe)), []).append(len(of_recipe))
    for fixed, numbers in by_what.items():
        varied = [stream for stream in SEED_STREAMS.values() if stream not in fixed]
        yield varied, [*fixed], numbers


@dataclass(frozen=True, repr=False)
class StudyPlan(Shown):
    """What `plan` returns: what a study will train, share and skip.

    Attributes:
        plan: Arms, states, and fine-tunings.
        summary: Counts and costs.
        rate: FLOP/s per device that hours are computed with.
        example_tokens: Assumed mean tokens of a fine-tuning example.
        memory: Bytes of a process of the largest training; 0 if unknown.
        jobs_here: Jobs at once on this machine, if the rate was measured here.
        advice: A sentence about the precision of this machine; empty for none.
    """

    plan: Plan
    summary: PlanSummary
    rate: float
    example_tokens: int
    memory: int = 0
    jobs_here: int | None = None
    advice: str = ""

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each arm: its steps, and those that no earlier arm trains."""
        new = self.plan.new_steps()
        return [
            {
                "arm": arm.name,
                "group": arm.config.group,
                "steps": arm.recipe.total_steps,
                "new_steps": new[arm.name],
            }
            for arm in self.plan.arms
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the plan with its states and segments, as `--json` prints it."""
        summary, plan = self.summary, self.plan
        flops = {
            "training": summary.shared.flops,
            "training_without_sharing": summary.alone.flops,
            "training_left": summary.left.flops,
            "fine_tuning": summary.finetuning_flops,
        }
        return {
            "format": FORMAT,
            **asdict(summary),
            "rate": self.rate,
            "memory_bytes": self.memory,
            "device_hours": {
                name: None if number is None else number / self.rate / 3600
                for name, number in flops.items()
            },
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
                {
                    "state": s.id,
                    "parent": s.parent,
                    "start": s.start,
                    "end": s.end,
                    "arm": s.arm.name,
                }
                for s in plan.segments
            ],
        }

    def lines(self) -> list[str]:
        """Return arms, costs and what is done."""
        summary, plan = self.summary, self.plan
        stops: dict[str, list[int]] = {}
        for point in plan.points:
            if not point.is_final:
                stops.setdefault(point.arm.name, []).append(point.step)
        unnamed = "no group" if len(summary.groups) > 1 else "all"
        rows = [(group.name or unnamed, group.alone, group.new) for group in summary.groups]
        if len(rows) > 1:
            rows.append(("all", summary.alone, summary.shared))
        saved = 1 - summary.shared.steps / summary.alone.steps if summary.alone.steps else 0
        return lines_of(
            "plan",
            shown=self,
            plan=summary,
            arms=plan.arms,
            most=60,
            new=plan.new_steps(),
            stops=stops,
            trained=partial(Store(plan.store).has, STATE),
            runs=[*_runs(plan)],
            rows=rows,
            saved=round(saved, 2),
            short_name=short_name,
            corpus_name=short_corpus_name,
            all_flops=(summary.shared + Cost(flops=summary.finetuning_flops)).flops,
            unknown="not known here",
        )

    def graph(self) -> str:
        """Return the graph of states as Mermaid: an arrow for each stretch of training."""
        named: dict[str, list[str]] = {}
        for point in self.plan.points:
            named.setdefault(point.state, []).append(point.name)
        for segment in self.plan.segments:
            named.setdefault(segment.id, [f"step {segment.end:,}"])
        numbers = {state: f"s{number}" for number, state in enumerate(named)}

        def place(state: str | None) -> str:  # other studies may have trained it
            return numbers.get(state, state[:12]) if state else "start"

        def objectives(segment: Segment) -> list[str]:
            phases = segment.arm.recipe.placed_phases
            begun = [p for p in phases if p.start < segment.end and p.end > segment.start]
            return [placed.phase.short_name.upper() for placed in begun]

        lines = lines_of("graph", plan=self.plan, named=named, place=place, objectives=objectives)
        return "\n".join(lines) + "\n"


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
