"""What must be trained for a study's arms: each state once, from the one before it.

Trunks, branches and decays follow from identities alone (`tree.py`).
"""

from __future__ import annotations

from collections.abc import Set
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
        start: Step it begins after.
        end: Step it ends with.
        parent: Identity of the state it needs, or None where it begins with random weights.
        label: What progress displays call it.
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
        """Its updates."""
        return self.end - self.start


@dataclass(frozen=True)
class PlannedArm:
    """An arm and the state that it ends with."""

    config: ArmConfig
    lineage: Lineage
    state: str


@dataclass(frozen=True)
class PlannedPoint:
    """A state that is evaluated: the end of an arm, or a step on its way.

    Attributes:
        name: The arm's name at its end; with the step before that.
        label: What reports call it.
        family: Objectives until then.
        arm: The arm.
        step: Updates before it.
        state: Identity of the state.
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
    """What is trained, and what of it is evaluated.

    Attributes:
        arms: In the study's order.
        points: The arms' ends in their order, then the steps on the way.
        segments: In an order in which they can be trained.
    """

    arms: tuple[PlannedArm, ...]
    points: tuple[PlannedPoint, ...]
    segments: tuple[Segment, ...]


def plan_training(
    config: StudyConfig, fingerprint: DataFingerprint, *, known: Set[str] = frozenset()
) -> TrainingPlan:
    """Expand a study's arms on their data.

    Args:
        config: The study.
        fingerprint: Its text.
        known: States that are there already, whoever trained them.

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
    on_the_way: list[PlannedPoint] = []
    segments: dict[str, Segment] = {}
    for arm, lineage, own in zip(config.arms, lineages, nodes, strict=True):
        total = lineage.recipe.total_steps
        arms.append(PlannedArm(arm, lineage, own[total].identity))
        points = [_point(arm, lineage.recipe, step, node) for step, node in sorted(own.items())]
        ends.append(points[-1])
        on_the_way += points[:-1]
        for segment in _segments(arm, lineage.recipe, own[total]):
            segments.setdefault(segment.id, segment)
    return TrainingPlan(tuple(arms), (*ends, *on_the_way), tuple(segments.values()))


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


def _segments(arm: ArmConfig, recipe: Recipe, end: Node) -> list[Segment]:
    """Return the segments that lead to an arm's end; of an untrained one it is the beginning."""
    path = end.path()
    pairs = list(pairwise(path)) or [(end, end)]
    return [_segment(arm, recipe, before, node) for before, node in pairs]


def _segment(arm: ArmConfig, recipe: Recipe, before: Node, node: Node) -> Segment:
    start, parent = before.step, before.identity if before.step else None
    if node.nearest is not None:
        start, parent = node.nearest
    return Segment(
        id=node.identity,
        recipe=recipe,
        start=start,
        end=node.step,
        parent=parent,
        label=f"{arm.name} {start}-{node.step}",
        arm=arm.name,
    )
