"""Training plans: the segments that train each state of a study once.

Trunks, branches and decays follow from identities alone (`tree.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from itertools import pairwise

from biphasic.study.plan.expansion import expand
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
class TrainingPlan:
    """The states that are trained and those that are evaluated.

    Attributes:
        points: The arms' ends in their order, then intermediate steps.
        segments: In an order in which they can be trained.
    """

    arms: tuple[PlannedArm, ...]
    points: tuple[PlannedPoint, ...]
    segments: tuple[Segment, ...]


def plan_training(
    config: StudyConfig, fingerprint: DataFingerprint, *, known: Set[str] = frozenset()
) -> TrainingPlan:
    """Plan the training of a study's arms.

    Raises:
        ConfigError: A schedule does not fit its run.
    """
    tree, stops = StateTree(), config.points_by_arm()
    lineages = [Lineage(config.recipe_of(arm), fingerprint) for arm in config.arms]
    nodes = [
        tree.add(expand(lineage.recipe, fingerprint), stops.get(arm.name, ()))
        for arm, lineage in zip(config.arms, lineages, strict=True)
    ]
    tree.name_states(known)
    arms: list[PlannedArm] = []
    ends: list[PlannedPoint] = []
    intermediate: list[PlannedPoint] = []
    segments: dict[str, Segment] = {}
    for arm, lineage, by_step in zip(config.arms, lineages, nodes, strict=True):
        total = lineage.recipe.total_steps
        arms.append(PlannedArm(arm, lineage, by_step[total].identity))
        points = [_point(arm, lineage.recipe, step, node) for step, node in sorted(by_step.items())]
        ends.append(points[-1])
        intermediate += points[:-1]
        for segment in _segments(arm, lineage.recipe, by_step[total]):
            segments.setdefault(segment.id, segment)
    return TrainingPlan(tuple(arms), (*ends, *intermediate), tuple(segments.values()))


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
