"""Reads a study's records into one frozen structure, and lists missing or damaged ones."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from biphasic.amounts import count, rate
from biphasic.analysis.curves import Curve, Losses, LossKind, joined_losses, read_losses
from biphasic.analysis.estimate import GridScore, best_per_seed, grid
from biphasic.analysis.study_file import read_study
from biphasic.analysis.text import listing
from biphasic.errors import CheckpointError, DataError
from biphasic.files import is_file
from biphasic.numerics import is_other_code
from biphasic.records import (
    ArmRecord,
    LedgerEntry,
    Record,
    RegistrationRecord,
    ResultRecord,
    RunRecord,
    StateRecord,
    StudyRecord,
    TaskRecord,
)
from biphasic.registration import read_registrations
from biphasic.store import RESULT, STATE, STORE, Artifact, Store

RecordT = TypeVar("RecordT", bound=Record)
Computed = TypeVar("Computed")
Status = Literal["finished", "diverged", "missing", "damaged"]
ProblemKind = Literal["missing", "diverged", "damaged", "mixed", "code", "left out"]


@dataclass(frozen=True)
class Problem:
    """A fact that affects how far the numbers can be trusted."""

    kind: ProblemKind
    text: str


@dataclass(frozen=True)
class TrainedSegment:
    """A part of training that ran once, for one or more arms."""

    state: str
    start_step: int
    end_step: int
    tokens: int
    flops: float
    seconds: float
    environment: Mapping[str, object]  # hardware, versions and compute settings

    @property
    def tokens_per_second(self) -> float:
        """Speed of training; 0 if no time is known."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class ArmData:
    """An arm with its loss curves and its costs."""

    record: ArmRecord
    state: StateRecord | None
    segments: tuple[TrainedSegment, ...]
    losses: Losses

    @property
    def name(self) -> str:
        """The arm's name in files."""
        return self.record.name

    @property
    def label(self) -> str:
        """The arm's display name."""
        return self.record.label

    @property
    def is_untrained(self) -> bool:
        """Return whether this arm is the baseline: an encoder with random weights."""
        return self.record.family == "none" and not self.record.continues

    @property
    def final_heldout(self) -> Mapping[str, float]:
        """Held-out loss of the final state by objective."""
        return self.state.heldout if self.state else {}

    @property
    def ledger(self) -> tuple[LedgerEntry, ...]:
        """Costs per phase."""
        return self.state.ledger if self.state else ()


@dataclass(frozen=True)
class StudyRecords:
    """All inputs of a report."""

    study: StudyRecord
    arms: tuple[ArmData, ...]
    runs: tuple[RunRecord, ...]  # the fine-tunings that the study expects
    results: Mapping[RunRecord, ResultRecord]
    damaged: frozenset[RunRecord]  # runs whose results cannot be used
    problems: tuple[Problem, ...]
    store: Path | None = None  # None if the records were built in memory
    # The first, then its amendments; None if one is damaged.
    registrations: tuple[RegistrationRecord, ...] | None = ()
    # Results of floors and references by name and task.
    baselines: Mapping[tuple[str, str], tuple[ResultRecord, ...]] = field(default_factory=dict)
    _computed: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def once(self, name: str, compute: Callable[[], Computed]) -> Computed:
        """Return `compute()`, cached by a name."""
        if name not in self._computed:
            self._computed[name] = compute()
        return self._computed[name]

    def without(self, tasks: Set[str]) -> StudyRecords:
        """Return the records without these tasks."""
        study = self.study.model_copy(
            update={"tasks": tuple(task for task in self.tasks if task.name not in tasks)}
        )
        return replace(
            self,
            study=study,
            runs=tuple(run for run in self.runs if run.task not in tasks),
            baselines={key: of for key, of in self.baselines.items() if key[1] not in tasks},
        )

    @property
    def tasks(self) -> tuple[TaskRecord, ...]:
        """The tasks in the study's order."""
        return self.study.tasks

    def task(self, name: str) -> TaskRecord | None:
        """Return the task with a name; None for an average."""
        return next((task for task in self.tasks if task.name == name), None)

    def seeds_of(self, arm: str, task: str) -> set[int]:
        """Return the seeds that the study expects of an arm on a task."""
        return {run.seed for run in self.by_cell.get((arm, task), ())}

    def status(self, run: RunRecord) -> Status:
        """Return what became of a run."""
        if result := self.results.get(run):
            return result.status
        return "damaged" if run in self.damaged else "missing"

    def scores_of(self, run: RunRecord, metric: str) -> tuple[float | None, float | None]:
        """Return a run's scores on validation and test, shares; None if it has none."""
        if not (result := self.results.get(run)):
            return None, None
        return result.score("validation", metric), result.score("test", metric)

    def results_of(self, runs: Iterable[RunRecord]) -> list[ResultRecord]:
        """Return the results of those runs that have one, in their order."""
        return [self.results[run] for run in runs if run in self.results]

    @cached_property
    def by_cell(self) -> Mapping[tuple[str, str], tuple[RunRecord, ...]]:
        """Runs by arm and task."""
        groups: dict[tuple[str, str], list[RunRecord]] = defaultdict(list)
        for run in self.runs:
            groups[run.arm, run.task].append(run)
        return {cell: tuple(group) for cell, group in groups.items()}

    @cached_property
    def grids(self) -> Mapping[tuple[str, str], list[GridScore[ResultRecord]]]:
        """The runs with scores of every arm on every task, in the study's order."""
        return {
            (arm.name, task.name): grid(
                self.results_of(self.by_cell.get((arm.name, task.name), ())), metric=task.metric
            )
            for arm, task in product(self.arms, self.tasks)
        }

    @cached_property
    def selected(self) -> Mapping[tuple[str, str], tuple[ResultRecord, ...]]:
        """The results of the selected runs of every arm on every task, in the study's order."""
        return {
            cell: tuple(entry.run for entry in best_per_seed(runs))
            for cell, runs in self.grids.items()
        }


def load_records(folder: Path, store: Path | None = None) -> StudyRecords:
    """Read a study's records; without `store`, from the store beside its folder."""
    study, store = read_study(folder), store or folder.parent / STORE
    reader = _Reader(study, store)
    arms = tuple(reader.arm(arm) for arm in study.arms)
    runs, baselines = tuple(reader.runs()), reader.baselines()
    results = {run: result for run in runs if (result := reader.result(run))}
    registrations = None
    try:
        registrations = read_registrations(folder)
    except DataError as error:
        reader.note("damaged", f"registration: {error}")
    codes = Counter(result.code for result in results.values())
    mixed = (*_mixed_environments(arms), *_mixed_devices(results.values()))
    problems = (*reader.problems, *mixed, *_other_code(arms, codes))
    damaged = frozenset(reader.damaged)
    return StudyRecords(
        study, arms, runs, results, damaged, problems, store, registrations, baselines
    )


class _Reader:
    """Reads a study's records, and notes problems; a state that arms share is read once."""

    def __init__(self, study: StudyRecord, store: Path) -> None:
        self.study = study
        self.store = store
        self.problems: list[Problem] = []
        self.damaged: set[RunRecord] = set()
        self._states = {arm.name: arm.state for arm in study.arms}
        self._metrics = {task.name: task.metric for task in study.tasks}
        self.state = cache(self._read_state)
        self.losses = cache(self._read_losses)

    def note(self, kind: ProblemKind, text: str) -> None:
        self.problems.append(Problem(kind, text))

    def arm(self, arm: ArmRecord) -> ArmData:
        losses = [self.losses(segment) for segment in arm.segments]
        state = None if arm.is_finished_encoder else self.state(arm.state)
        if state is not None and arm.segments:  # the last evaluation may not be logged
            tokens = sum(entry.tokens for entry in state.ledger)
            last: dict[tuple[LossKind, str], Curve] = {}
            for objective, loss in state.heldout.items():
                logged = [
                    each["heldout", objective] for each in losses if ("heldout", objective) in each
                ]
                if not logged or logged[-1].steps[-1] < state.step:
                    point = ([state.step], [tokens], [loss], [0])
                    last["heldout", objective] = Curve(*map(np.array, point))
            losses.append(last)
        return ArmData(
            record=arm, state=state, segments=self._segments(arm), losses=joined_losses(losses)
        )

    def runs(self) -> Iterator[RunRecord]:
        seen: set[tuple[str, str, float, int]] = set()
        for run in self.study.runs:
            where = describe_run(run.arm, run)
            if run.arm not in self._states or run.task not in self._metrics:
                self.note("damaged", f"{where}: no such arm or task; skipped")
                continue
            cell = (run.arm, run.task, run.learning_rate, run.seed)
            if cell in seen:
                self.note("damaged", f"{where}: listed twice; the second is skipped")
                continue
            seen.add(cell)
            yield run

    def baselines(self) -> dict[tuple[str, str], tuple[ResultRecord, ...]]:
        """Return the results of floors and references by name and task."""
        found: defaultdict[tuple[str, str], list[ResultRecord]] = defaultdict(list)
        for run in self.study.baselines:
            if run.task not in self._metrics:
                self.note("damaged", f"{run.arm} on {run.task}: no such task; skipped")
            elif result := self.result(run):
                found[run.arm, run.task].append(result)
        return {key: tuple(results) for key, results in found.items()}

    def result(self, run: RunRecord) -> ResultRecord | None:
        path = Store(self.store).folder(RESULT, run.id) / "result.json"
        where = describe_run(run.arm, run)
        if not is_file(path):
            self.note("missing", f"{where}: not run yet")
            return None
        result = self._read(ResultRecord, path, where=f"{where}: ")
        if result is not None and (problem := self._problem(result, run)):
            self.note("damaged", f"{where}: result.json {problem}; skipped")
            result = None
        if result is None:
            self.damaged.add(run)
        elif result.status == "diverged":
            self.note("diverged", f"{where}: diverged after {result.steps} steps")
        return result

    def _problem(self, result: ResultRecord, run: RunRecord) -> str:
        """Return why a result is not that of a run; empty if it is."""
        state = self._states.get(run.arm, "")  # baselines have none
        expected = (run.id, state, run.task, run.learning_rate, run.seed)
        recorded = (result.id, result.state, result.task, result.learning_rate, result.seed)
        if recorded != expected:
            return "belongs to another run"
        metric = self._metrics[run.task]
        if result.status == "finished" and metric not in (result.test or {}):
            return f"has no '{metric}'"
        return ""

    def _read_state(self, identity: str) -> StateRecord | None:
        path = Store(self.store).folder(STATE, identity) / "state.json"
        if not is_file(path):
            self.note("missing", f"state {identity[:12]} has not been trained")
            return None
        state = self._read(StateRecord, path)
        if state is None:
            return None
        if state.identity != identity:
            other = state.identity[:12]
            self.note("damaged", f"{identity[:12]}/state.json: belongs to state {other}; skipped")
            return None
        if self._has_same_heldout(state):
            return state
        self.note(
            "mixed",
            f"state {identity[:12]} was evaluated on other held-out text than this study's: "
            "its held-out losses are skipped",
        )
        return state.model_copy(update={"heldout": {}})

    def _has_same_heldout(self, state: StateRecord) -> bool:
        """Return whether held-out losses are comparable; old records without this field are."""
        both = {state.heldout_sha256, self.study.heldout_sha256}
        return None in both or len(both) == 1

    def _read_losses(self, identity: str) -> Losses:
        path = Store(self.store).folder(STATE, identity) / "metrics.jsonl"
        state = self.state(identity)
        if state is None:
            return {}
        if not is_file(path):
            self.note("missing", f"state {identity[:12]} has no metrics.jsonl: no loss curve")
            return {}
        try:
            _open(path.parent).check(path.name)
        except CheckpointError as error:
            self.note("damaged", str(error))
            return {}
        damaged: list[str] = []
        losses = read_losses(path, where=f"{identity[:12]}/metrics.jsonl", problems=damaged)
        for text in damaged:
            self.note("damaged", text)
        if self._has_same_heldout(state):
            return losses
        return {key: curve for key, curve in losses.items() if key[0] == "training"}

    def _segments(self, arm: ArmRecord) -> tuple[TrainedSegment, ...]:
        segments = []
        step, tokens, flops = 0, 0, 0.0
        for identity in arm.segments:
            state = self.state(identity)
            if state is None:
                break
            # The ledger counts from step 0, a segment from where the previous one ended.
            total_tokens = sum(entry.tokens for entry in state.ledger)
            total_flops = sum(entry.flops for entry in state.ledger)
            spent = total_tokens - tokens, total_flops - flops, state.seconds
            how = {**state.environment, **state.compute}
            one = TrainedSegment(identity, step, state.step, *spent, how)
            segments.append(one)
            step, tokens, flops = state.step, total_tokens, total_flops
        return tuple(segments)

    def _read(self, kind: type[RecordT], path: Path, *, where: str = "") -> RecordT | None:
        """Read a record; note other files of its folder that are missing or of another size."""
        try:
            artifact = _open(path.parent)
            for damage in artifact.problems(hashes=False):
                self.note("damaged", f"{damage}; {_REMEDY.format(path.parent)}")
            return artifact.record(kind, path.name)
        except CheckpointError as error:
            self.note("damaged", f"{where}{error}")
            return None


_REMEDY = "delete the folder {} and run the study again"


def _open(folder: Path) -> Artifact:
    kind = STATE if folder.parent.name == STATE.place else RESULT
    return kind.open(folder, identity=folder.name, remedy=_REMEDY)


def describe_run(arm: str, run: RunRecord | ResultRecord) -> str:
    """Name a run in messages."""
    if not run.learning_rate:  # zero-shot: neither a rate nor a seed
        return f"{arm} on {run.task}"
    return f"{arm} on {run.task}, learning rate {rate(run.learning_rate)}, seed {run.seed}"


# Compute settings that change no number.
_EXACT = {"activation_checkpointing", "read_back_every"}


def _mixed_environments(arms: Sequence[ArmData]) -> list[Problem]:
    """Describe the differences between the machines and settings that trained the arms."""
    segments = {each.state: each for arm in arms for each in arm.segments}
    trained = [{each.state for each in arm.segments} for arm in arms if arm.segments]
    shared = set.intersection(*trained) if trained else set()
    # Arms do not differ in what all of them continue from, unless one of them ends there.
    left_out = set() if shared in trained else shared
    values: dict[str, set[str]] = defaultdict(set)
    for state in segments.keys() - left_out:
        for key, value in segments[state].environment.items():
            values[key].add(json.dumps(value, sort_keys=True, default=str))
    return [
        Problem("mixed", f"arms were trained under different {key}: {', '.join(sorted(distinct))}")
        for key, distinct in sorted(values.items())
        if len(distinct) > 1 and key not in _EXACT
    ]


def _mixed_devices(results: Iterable[ResultRecord]) -> list[Problem]:
    """Name the tasks whose scores are from several kinds of device."""
    devices: dict[str, set[str]] = defaultdict(set)
    for result in results:
        if result.device is not None:
            devices[result.task].add(result.device.partition(":")[0])  # `cuda:1` is `cuda`
    tasks = [task for task, kinds in devices.items() if len(kinds) > 1]
    kinds = sorted(set().union(*(devices[task] for task in tasks)))
    text = f"runs on {listing(tasks, most=5)} were computed on different devices: {listing(kinds)}"
    return [Problem("mixed", text)] if tasks else []


def _other_code(arms: Iterable[ArmData], codes: Counter[str | None]) -> list[Problem]:
    """Name what other code than the running one made; `codes` counts those of results."""
    states = {arm.name: arm.state for arm in arms if arm.state}
    trained = [name for name, state in states.items() if is_other_code("pretraining", state.code)]
    is_other = {code: is_other_code("finetuning", [code] if code else []) for code in codes}
    scored = sum(number for code, number in codes.items() if is_other[code])
    parts = [f"the states of {listing(trained, most=5)}"] if trained else []
    parts += [count(scored, "fine-tuning")] if scored else []
    if not parts:
        return []
    text = (
        f"made by other code than the running one, which may give other numbers: "
        f"{' and '.join(parts)}; 'biphasic study run --fresh' with the study file makes them again"
    )
    return [Problem("code", text)]
