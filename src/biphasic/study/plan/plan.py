"""The plan of a study: segments to train and groups to fine-tune, named by identity.

The states after each step of all arms form a tree by identity (`tree.py`). A segment runs from one
needed state to the next: the untrained model, a branching point, the end of an arm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from pathlib import Path
from types import MappingProxyType

from biphasic.analysis.text import listing
from biphasic.data.packing import Attention
from biphasic.errors import ConfigError
from biphasic.facts import is_baseline
from biphasic.files import read_json_object
from biphasic.model.loading.hub import LocalModel
from biphasic.study.inputs.corpus import DataPaths
from biphasic.study.inputs.tasks import PlannedTask
from biphasic.study.jobs import TrainJob
from biphasic.study.plan.finetuning import (
    FinetuneGroup,
    PlannedBaseline,
    Vectors,
    by_training,
    plan_baselines,
    plan_group,
)
from biphasic.study.plan.tree import Node, StateTree
from biphasic.study.settings.arms import ArmConfig, family_of, point_name
from biphasic.study.settings.tuned_rates import TunedRate, last_rate
from biphasic.study.study import Study
from biphasic.training.lineage import DataFingerprint, Lineage
from biphasic.training.recipe import Recipe, Seeds

NO_CORPUS = DataFingerprint(corpus_hash="", tokenizer_sha256="", vocab_size=0)


@dataclass(frozen=True)
class PlannedArm:
    """An arm with its run from the first step on, and its final state."""

    config: ArmConfig
    lineage: Lineage
    state: str
    tuned: TunedRate | None = None  # Tuned rate of its first schedule.
    tuned_last: TunedRate | None = None  # Tuned rate of its last schedule.
    encoder: LocalModel | None = None  # A finished encoder, whose identity is the state's.

    @property
    def name(self) -> str:
        """Its name in the study."""
        return self.config.name

    @property
    def recipe(self) -> Recipe:
        """Its recipe, at its tuned rate if it has one."""
        return self.lineage.recipe

    @property
    def vocab_size(self) -> int:
        """Entries of the tokenizer, special tokens included."""
        return self.lineage.fingerprint.vocab_size

    @property
    def vectors(self) -> Vectors | None:
        """The width of its vectors, and its tokenizer; None if its model is not here."""
        if self.encoder:
            width = width_of(self.encoder.folder)
            return Vectors(width, self.encoder.identity, self.encoder.folder) if width else None
        architecture, model = self.recipe.architecture, self.recipe.model
        pretrained = Path(getattr(model, "pretrained", ""))
        width = architecture.hidden_size if architecture else width_of(pretrained)
        return Vectors(width, self.lineage.fingerprint.tokenizer_sha256) if width else None


def width_of(folder: Path) -> int | None:
    """Return the width of hidden states that a folder's `config.json` states."""
    config = folder / "config.json"
    settings = read_json_object(config) if config.is_file() else {}
    if isinstance(inner := settings.get("encoder"), dict):  # of a fine-tuned model's own class
        settings = inner
    names = ("hidden_size", "n_embd", "d_model", "dim")
    return next((settings[name] for name in names if isinstance(settings.get(name), int)), None)


@dataclass(frozen=True)
class Segment:
    """Train from one state to a later one."""

    id: str  # Identity of the state at its end.
    start: int
    end: int
    # Identity of the state it resumes from; None if it starts from the initial model.
    parent: str | None
    arm: PlannedArm  # The first arm that passes through it.

    @property
    def steps(self) -> int:
        """The number of its updates."""
        return self.end - self.start

    @property
    def label(self) -> str:
        """Name in progress displays."""
        return f"{self.arm.name} {self.start}-{self.end}"

    def job(self, study: Study, data: DataPaths) -> TrainJob:
        """Return the job that trains it."""
        config = study.config
        return TrainJob(
            id=self.id,
            label=self.label,
            store=study.store,
            data=data,
            recipe=self.arm.recipe,
            start=self.start,
            end=self.end,
            checkpoint_every=config.checkpoint_every,
            heldout_every=config.heldout_every,
            tensorboard=study.folder / "tensorboard" / self.label.replace(" ", "-"),
            compute=config.compute,
        )


@dataclass(frozen=True)
class PlannedPoint:
    """A state that is evaluated: the end of an arm, or an intermediate step."""

    arm: PlannedArm
    step: int
    state: str

    @property
    def is_final(self) -> bool:
        """Whether the arm ends here."""
        return self.step == self.arm.recipe.total_steps

    @property
    def name(self) -> str:
        """The arm's name, with the step appended for intermediate states."""
        return self.arm.name if self.is_final else point_name(self.arm.name, self.step)

    @property
    def label(self) -> str:
        """Name in reports."""
        label = self.arm.config.label or self.arm.name
        return label if self.is_final else f"{label}, step {self.step:,}"

    @property
    def attention(self) -> Attention | None:
        """How its encoder attends in fine-tuning and scoring; None: as protocols say."""
        return self.arm.config.attention

    @property
    def family(self) -> str:
        """Objectives up to this step."""
        placed = self.arm.recipe.placed_phases
        return family_of([each.phase for each in placed if each.start < self.step])


@dataclass(frozen=True)
class Plan:
    """Everything that a study computes."""

    study: Study
    arms: tuple[PlannedArm, ...]
    # The states that are evaluated: the arms' ends in their order, then others.
    points: tuple[PlannedPoint, ...]
    segments: tuple[Segment, ...]  # In an order in which they can be trained.
    groups: tuple[FinetuneGroup, ...] = ()
    tasks: tuple[PlannedTask, ...] = ()
    assumed: tuple[str, ...] = ()  # A sentence for each placeholder of missing data.

    @property
    def store(self) -> Path:
        """The store of the study's root."""
        return self.study.store

    @cached_property
    def encoders(self) -> dict[str, Path]:
        """The folders of finished encoders by identity; they are not in the store."""
        return {arm.state: arm.encoder.folder for arm in self.arms if arm.encoder}

    @property
    def fingerprint(self) -> DataFingerprint:
        """What identifies the data, with placeholders for missing ones."""
        return self.arms[0].lineage.fingerprint

    def run_ids(self) -> Iterator[str]:
        """Yield the identities of all fine-tunings."""
        for group in self.groups:
            yield from group.run_ids()

    @cached_property
    def baselines(self) -> tuple[PlannedBaseline, ...]:
        """The floors and references of its tasks."""
        seeds = dict.fromkeys(seed for group in self.groups for _, seed in group.grid)
        vectors = {arm.name: arm.vectors for arm in self.arms}
        return tuple(plan_baselines(self.tasks, vectors, seeds))

    def result_ids(self) -> Iterator[str]:
        """Yield the identities of all fine-tunings and baselines."""
        yield from self.run_ids()
        yield from (one.id for one in self.baselines)

    def path(self, state: str) -> list[str]:
        """Return the segments that lead to a state, last first."""
        segments: list[str] = []
        current: str | None = state
        while current in self.parents:
            segments.append(current)
            current = self.parents[current]
        return segments

    def new_steps(self) -> dict[str, int]:
        """Return the steps of each arm that no earlier arm trains."""
        new = dict.fromkeys((arm.name for arm in self.arms), 0)
        for segment in self.segments:
            new[segment.arm.name] += segment.steps
        return new

    def jobs_by_arm(self) -> dict[str, list[str]]:
        """Return the segments and groups of each arm; shared ones are listed for each arm."""
        jobs = {arm.name: self.path(arm.state) for arm in self.arms}
        for point in self.points:
            jobs[point.arm.name] += [group.id for group in self.groups_of(point)]
        return jobs

    def groups_of(self, point: PlannedPoint) -> list[FinetuneGroup]:
        """Return the fine-tunings of an evaluated state, with its arm's attention."""
        own = {task.info.name: task.training.protocol.attention for task in self.tasks}
        return [
            group
            for group in self._groups_by_state.get(point.state, ())
            if group.attention == (point.attention or own[group.evaluations[0].info.name])
        ]

    @cached_property
    def _groups_by_state(self) -> dict[str, list[FinetuneGroup]]:
        groups: dict[str, list[FinetuneGroup]] = {}
        for group in self.groups:
            groups.setdefault(group.state, []).append(group)
        return groups

    @cached_property
    def parents(self) -> dict[str, str | None]:
        """The state that each segment resumes from."""
        return {segment.id: segment.parent for segment in self.segments}


def plan_study(
    study: Study,
    fingerprint: DataFingerprint,
    tasks: tuple[PlannedTask, ...] = (),
    *,
    encoders: Mapping[str, LocalModel] = MappingProxyType({}),
    known: Set[str] = frozenset(),
    assumed: tuple[str, ...] = (),
) -> Plan:
    """Plan a study on its data and the finished `encoders` of its arms, by name.

    Training resumes from `known` states, of any study.
    """
    config, tree, stops = study.config, StateTree(), study.config.points_by_arm()
    lineages = {arm.name: Lineage(study.recipes[arm.name], fingerprint) for arm in config.arms}
    nodes = {
        arm.name: tree.add(
            lineages[arm.name], (*stops.get(arm.name, ()), *study.recipes[arm.name].lora_borders)
        )
        for arm in config.arms
        if arm.encoder is None
    }
    tree.name_states(known)
    arms: list[PlannedArm] = []
    ends: list[PlannedPoint] = []
    intermediate: list[PlannedPoint] = []
    segments: dict[str, Segment] = {}
    for settings in config.arms:
        lineage = lineages[settings.name]
        if settings.encoder is not None:
            encoder = encoders[settings.name]
            arms.append(PlannedArm(settings, lineage, encoder.identity, encoder=encoder))
            ends.append(PlannedPoint(arms[-1], 0, encoder.identity))
            continue
        *between, (_, end) = sorted(nodes[settings.name].items())
        rates = config.tuned_rate_of(settings), last_rate(settings, config.tuned_rates)
        arm = PlannedArm(settings, lineage, end.identity, *rates)
        arms.append(arm)
        ends.append(PlannedPoint(arm, end.step, end.identity))
        own = stops.get(settings.name, ())
        intermediate += [PlannedPoint(arm, at, node.identity) for at, node in between if at in own]
        # Arms share the segments that have one identity; the first arm gives them their name.
        for segment in _segments(arm, end):
            segments.setdefault(segment.id, segment)
    points = (*ends, *intermediate)
    groups = _groups(study, points, tasks)
    plan = Plan(study, tuple(arms), points, tuple(segments.values()), groups, tasks, assumed)
    _check_asked(plan)
    return plan


def _check_asked(plan: Plan) -> None:
    """Check that the tasks have the floors and references that comparisons name."""
    known = {
        task.info.name: {one.name for one in plan.baselines if one.task is task}
        for task in (() if plan.assumed else plan.tasks)
    }
    config = plan.study.config
    comparisons = [(f"compare.{n}", one, one.arms) for n, one in enumerate(config.compare)]
    comparisons += [
        (f"questions.{index}.comparisons.{n}", one, (*one.arms, *(one.minus or ())))
        for index, question in enumerate(config.questions)
        for n, one in enumerate(question.comparisons)
    ]
    for where, one, arms in comparisons:
        for name, task in product(filter(is_baseline, arms), one.tasks or known):
            if name not in known.get(task, {name}):
                raise ConfigError(
                    f"{where}: task '{task}' has no baseline '{name}'; "
                    f"it has {listing(sorted(known[task]))}"
                )


def _segments(arm: PlannedArm, end: Node) -> Iterator[Segment]:
    """Yield the segments that lead to an arm's end; an untrained arm has one of no steps."""
    for before, node in list(pairwise(end.path())) or [(end, end)]:
        start, parent = before.step, before.identity if before.step else None
        if node.nearest is not None:
            # A state in between, of any study, saves the updates before it.
            start, parent = node.nearest
        yield Segment(node.identity, start, node.step, parent, arm)


def _groups(
    study: Study, points: tuple[PlannedPoint, ...], tasks: tuple[PlannedTask, ...]
) -> tuple[FinetuneGroup, ...]:
    # Fine-tunings that several arms share have the name and the seeds of the first.
    finetuning, groups = study.config.finetuning, dict[str, FinetuneGroup]()
    runs = [point.arm.recipe.seeds for point in points if not point.arm.encoder] or [Seeds()]
    # A finished encoder has no pretraining seeds: it is paired with every run.
    of_all_runs = dict.fromkeys(seed for run in runs for seed in finetuning.seeds_of(run))
    for scored in by_training(tasks):
        for point in points:
            own = finetuning.seeds_of(point.arm.recipe.seeds)
            group = plan_group(
                point.state,
                tuple(task.attending(point.attention) for task in scored),
                finetuning,
                seeds=of_all_runs if point.arm.encoder else own,
                name=point.name,
                store=study.store,
            )
            both = (groups.setdefault(group.training_id, group), group)
            one, other = ([task.info.name for task in each.evaluations] for each in both)
            if one != other:
                raise ConfigError(
                    f"tasks {listing([*one, *other])} are trained on '{group.training.info.name}' "
                    "with different attention; as arms set attention, give these tasks the same one"
                )
    return tuple(groups.values())
