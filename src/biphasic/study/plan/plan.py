"""The plan of a study: segments to train and groups to fine-tune, named by identity.

The states after each step of all arms form a tree by identity (`tree.py`). A segment runs from one
needed state to the next: the untrained model, a branching point, the end of an arm.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from biphasic.study.inputs.tasks import PlannedTask
from biphasic.study.plan.finetuning import FinetuneGroup, by_training, plan_group
from biphasic.study.plan.tree import Node, StateTree
from biphasic.study.spec.arms import ArmConfig, family_of
from biphasic.study.spec.naming import point_name
from biphasic.study.spec.study import StudyConfig
from biphasic.training.lineage import DataFingerprint, Lineage
from biphasic.training.recipe import Recipe


@dataclass(frozen=True)
class Segment:
    """Train from one state to a later one.

    Attributes:
        id: Identity of the state at its end.
        recipe: One of the recipes that pass through it.
        parent: Identity of the state it resumes from; None if it starts from the initial model.
        label: Name in progress displays.
        arm: Name of the first arm that passes through it.
    """

    id: str
    recipe: Recipe
    start: int
    end: int
    parent: str | None
    label: str
    arm: str = ""

    @property
    def steps(self) -> int:
        """The number of its updates."""
        return self.end - self.start


@dataclass(frozen=True)
class PlannedArm:
    """An arm and its final state."""

    config: ArmConfig
    lineage: Lineage
    state: str
    is_tuned: bool = False


@dataclass(frozen=True)
class PlannedPoint:
    """A state that is evaluated: the end of an arm, or an intermediate step.

    Attributes:
        name: The arm's name, with the step appended for intermediate states.
        label: Name in reports.
        family: Objectives up to this step.
    """

    name: str
    label: str
    family: str
    arm: ArmConfig
    step: int
    state: str

    @property
    def is_final(self) -> bool:
        """Whether the arm ends here."""
        return self.step == sum(phase.steps for phase in self.arm.phases)


@dataclass(frozen=True)
class Plan:
    """Everything that a study computes.

    Attributes:
        points: The states that are evaluated: the arms' ends in their order, then others.
        segments: In an order in which they can be trained.
    """

    arms: tuple[PlannedArm, ...]
    points: tuple[PlannedPoint, ...]
    segments: tuple[Segment, ...]
    groups: tuple[FinetuneGroup, ...] = ()
    tasks: tuple[PlannedTask, ...] = ()

    @property
    def fingerprint(self) -> DataFingerprint:
        """What identifies the data, with placeholders for missing ones."""
        return self.arms[0].lineage.fingerprint

    def path(self, state: str) -> list[str]:
        """Return the segments that lead to a state, last first."""
        segments: list[str] = []
        current: str | None = state
        while current in self._parents:
            segments.append(current)
            current = self._parents[current]
        return segments

    def jobs_by_arm(self) -> dict[str, list[str]]:
        """Return the segments and groups of each arm; shared ones are listed for each arm."""
        groups: dict[str, list[str]] = {}
        for group in self.groups:
            groups.setdefault(group.state, []).append(group.id)
        jobs = {arm.config.name: self.path(arm.state) for arm in self.arms}
        for point in self.points:
            jobs[point.arm.name] += groups.get(point.state, ())
        return jobs

    @cached_property
    def _parents(self) -> dict[str, str | None]:
        return {segment.id: segment.parent for segment in self.segments}


def plan_study(
    config: StudyConfig,
    fingerprint: DataFingerprint,
    tasks: tuple[PlannedTask, ...] = (),
    *,
    known: Set[str] = frozenset(),
) -> Plan:
    """Plan a study on its data.

    Training resumes from `known` states, of any study.
    """
    arms, points, segments = _plan_training(config, fingerprint, known)
    # A state that several arms share has the name and the fine-tuning seeds of the first.
    first = {point.state: point for point in reversed(points)}
    states = dict.fromkeys(point.state for point in points)
    groups = tuple(
        plan_group(
            state,
            evaluations,
            config.finetuning,
            run=config.recipe_of(first[state].arm).seeds,
            name=first[state].name,
        )
        for evaluations in by_training(tasks)
        for state in states
    )
    return Plan(arms, points, segments, groups, tasks)


def _plan_training(
    config: StudyConfig, fingerprint: DataFingerprint, known: Set[str]
) -> tuple[tuple[PlannedArm, ...], tuple[PlannedPoint, ...], tuple[Segment, ...]]:
    """Return the arms, the states to evaluate, and the segments that train them."""
    tree, stops = StateTree(), config.points_by_arm()
    lineages = [Lineage(config.recipe_of(arm), fingerprint) for arm in config.arms]
    nodes = [
        tree.add(lineage, stops.get(arm.name, ()))
        for arm, lineage in zip(config.arms, lineages, strict=True)
    ]
    tree.name_states(known)
    arms: list[PlannedArm] = []
    ends: list[PlannedPoint] = []
    intermediate: list[PlannedPoint] = []
    segments: dict[str, Segment] = {}
    for arm, lineage, by_step in zip(config.arms, lineages, nodes, strict=True):
        total = lineage.recipe.total_steps
        arms.append(PlannedArm(arm, lineage, by_step[total].identity, config.is_tuned(arm)))
        points = [_point(arm, lineage.recipe, step, node) for step, node in sorted(by_step.items())]
        ends.append(points[-1])
        intermediate += points[:-1]
        for segment in _segments(arm, lineage.recipe, by_step[total]):
            segments.setdefault(segment.id, segment)
    return tuple(arms), (*ends, *intermediate), tuple(segments.values())


def _point(arm: ArmConfig, recipe: Recipe, step: int, node: Node) -> PlannedPoint:
    label = arm.label or arm.name
    if step == recipe.total_steps:
        return PlannedPoint(arm.name, label, arm.family, arm, step, node.identity)
    begun = [placed.phase for placed in recipe.placed_phases if placed.start < step]
    return PlannedPoint(
        name=point_name(arm.name, step),
        label=f"{label}, step {step:,}",
        family=family_of(begun),
        arm=arm,
        step=step,
        state=node.identity,
    )


def _segments(arm: ArmConfig, recipe: Recipe, end: Node) -> Iterator[Segment]:
    """Yield the segments that lead to an arm's end; an untrained arm has one of no steps."""
    for before, node in list(pairwise(end.path())) or [(end, end)]:
        start, parent = before.step, before.identity if before.step else None
        if node.nearest is not None:
            start, parent = node.nearest
        yield Segment(
            id=node.identity,
            recipe=recipe,
            start=start,
            end=node.step,
            parent=parent,
            label=f"{arm.name} {start}-{node.step}",
            arm=arm.name,
        )
