"""What a store has of a plan: finished work, and what another version or other code made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from biphasic.amounts import count
from biphasic.errors import CheckpointError, DataError, NewerFormatError
from biphasic.facts import RANDOM_VECTORS
from biphasic.files import canonical_json, read_json
from biphasic.locks import Say, lock_cleaning
from biphasic.numerics import is_other_code
from biphasic.plugins import references_in, shown, without_code
from biphasic.store import RESULT, STATE, Store, is_complete, read_state_record
from biphasic.study.inputs.tasks import few_steps, num_seen
from biphasic.study.plan.finetuning import FinetuneGroup, other_reading_of_phase
from biphasic.study.plan.plan import Plan, Segment
from biphasic.tasks.kinds.registry import KINDS
from biphasic.training.state import Checkpoints

_OTHER_VERSION = "another version of biphasic"


@dataclass(frozen=True)
class Finished:
    """A snapshot of the finished work of a plan: identities of states and of fine-tunings."""

    plan: Plan
    states: frozenset[str]
    results: frozenset[str]

    @classmethod
    def of(cls, plan: Plan) -> Finished:
        """List the finished work of a plan's store."""
        walked = (Store(plan.store).walk(kind) for kind in (STATE, RESULT))
        return cls(plan, *map(frozenset, walked))

    def missing_segments(self) -> list[Segment]:
        """Return the segments whose state is missing and is evaluated, or leads to such a one."""
        # Arms that were trained apart have no state where they branch, and need none.
        needed: set[str | None] = {point.state for point in self.plan.points}
        missing: list[Segment] = []
        for segment in reversed(self.plan.segments):  # those that need a state before it
            if segment.id in needed and segment.id not in self.states:
                missing.append(segment)
                needed.add(segment.parent)
        return missing[::-1]

    def missing_groups(self) -> list[FinetuneGroup]:
        """Return the groups of fine-tunings with a missing result."""
        groups = self.plan.groups
        return [group for group in groups if not self.results.issuperset(group.run_ids())]

    def jobs(self) -> set[str]:
        """Return the identities of the finished jobs."""
        left = {job.id for job in (*self.missing_segments(), *self.missing_groups())}
        return {job.id for job in (*self.plan.segments, *self.plan.groups)} - left

    def planned_results(self) -> Iterator[str]:
        """Yield the identities of the plan's finished fine-tunings."""
        if self.results:
            yield from (name for name in self.plan.run_ids() if name in self.results)


def plan_notes(plan: Plan) -> tuple[str, ...]:
    """Return sentences about settings, tasks, and arms of another version."""
    rates = plan.study.config.rate_notes()
    few = [note] if (note := few_steps(plan.tasks)) else []
    tasks = (*few, *_same_tasks(plan), *_seen_in_training(plan))
    widths = _without_width(plan)
    return (*rates, *tasks, *_other_readings(plan), *widths, *outdated_arms(plan))


def _without_width(plan: Plan) -> Iterator[str]:
    """Yield a note for each arm without random vectors, if a task has such a floor."""
    if plan.assumed or not any(RANDOM_VECTORS in KINDS[t.info.kind].baselines for t in plan.tasks):
        return
    for arm in plan.arms:
        if arm.vectors is None:
            yield (
                f"arm '{arm.name}': its config.json does not state the width of hidden states, so "
                f"the floor of random vectors cannot be computed ({RANDOM_VECTORS})"
            )


def _seen_in_training(plan: Plan) -> Iterator[str]:
    """Yield a note for each task with test examples in the training corpus."""
    for task in plan.tasks:
        if seen := num_seen(plan.store, plan.fingerprint, task):
            number = f"{seen:,} of {task.num_examples['test']:,} test examples"
            yield f"task '{task.info.name}': {number} occur in the training corpus"


def _same_tasks(plan: Plan) -> Iterator[str]:
    """Yield a note for each task that has the data and settings of another."""
    first: dict[str, str] = {}
    for task in plan.tasks:
        if task.is_read:
            trainer = task.training
            data = [task.info.kind, task.info.sha256, trainer.info.sha256, task.info.metric]
            key = canonical_json([*data, task.determinants, trainer.determinants])
            if first.setdefault(key, task.info.name) != task.info.name:
                names = f"'{first[key]}' and '{task.info.name}'"
                yield (
                    f"tasks {names} have the same data and settings: averages count them twice; "
                    "remove one"
                )


def _other_readings(plan: Plan) -> Iterator[str]:
    """Yield a note for each arm whose vectors a task reads otherwise than they were trained."""
    for point in plan.points:
        if point.arm.encoder is None and point.step:  # of an encoder, its files say it
            phase = point.arm.recipe.phase_at(point.step - 1).phase
            for task in plan.tasks:
                note = other_reading_of_phase(phase, task.attending(point.attention))
                if note:
                    yield f"arm '{point.name}' on {task.info.name}: {note}"


def outdated_arms(plan: Plan) -> list[str]:
    """Return a note for each arm whose final state only another version of biphasic computed."""
    # Recipe, data and step are the same, but the identity differs: it includes the version of the
    # numbers (`NUMERICS_VERSION`) and the code of plugins.
    trained = (arm for arm in plan.arms if arm.encoder is None)
    missing = [arm for arm in trained if not Store(plan.store).has(STATE, arm.state)]
    if not missing:
        return []
    others = _unplanned_states(plan)
    notes: list[str] = []
    for arm in missing:
        recipe = arm.recipe.model_dump(mode="json")
        key = _key(recipe, arm.recipe.total_steps, asdict(arm.lineage.fingerprint))
        if key in others:
            state, before = others[key]
            now = references_in(recipe)
            changed = [shown(old) for old in references_in(before) if old not in now]
            code = f"other code of {' and '.join(changed)}" if changed else _OTHER_VERSION
            notes.append(
                f"arm '{arm.name}': was trained with {code} (state {state[:12]}); results may "
                "differ, so it is trained again"
            )
    return notes


def _unplanned_states(plan: Plan) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the states of a store that a plan does not have, by recipe, step and data."""
    # Recipes with other code of a plugin have the same key, so each state is with its own recipe.
    planned = {segment.id for segment in plan.segments}
    names: dict[str, tuple[str, dict[str, Any]]] = {}
    for path in sorted((plan.store / STATE.place).glob("*/state.json")):
        name = path.parent.name
        if name in planned or not is_complete(path.parent):
            continue
        try:
            state = read_json(path)
            key = _key(state["recipe"], state["step"], state["ground"])
        except (DataError, KeyError, NewerFormatError, TypeError):
            continue  # of a version too old or too new to compare, or of another program
        names[key] = name, state["recipe"]
    return names


def _key(recipe: object, step: int, ground: Mapping[str, Any]) -> str:
    data = [ground["corpus_hash"], ground.get("pretrained"), ground.get("corpora") or {}]
    return without_code(canonical_json({"recipe": recipe, "step": step, "data": data}))


@dataclass(frozen=True)
class OtherCode:
    """States, checkpoints and results of a store that other code made."""

    # Results of such states count as well.

    store: Path
    states: tuple[str, ...] = ()
    checkpoints: tuple[Path, ...] = ()
    results: tuple[str, ...] = ()

    @classmethod
    def of_plan(cls, plan: Plan) -> OtherCode:
        """Find what other code made of a plan, and of the states that it continues from."""
        states = dict.fromkeys([*plan.parents, *filter(None, plan.parents.values())])
        segments = [(segment.id, segment.start) for segment in plan.segments]
        return cls.of(plan.store, states, segments, plan.result_ids())

    @classmethod
    def of(
        cls,
        store: Path,
        states: Iterable[str] = (),
        segments: Iterable[tuple[str, int]] = (),
        results: Iterable[str] = (),
    ) -> OtherCode:
        """Find what other code made of states, of segments (end, first step), and of results."""
        at = Store(store)
        trained = [name for name in states if _is_other_state(at.folder(STATE, name), name)]
        progress = (Checkpoints.of(store, name, start=start) for name, start in segments)
        saved = (each.path(step) for each in progress for step in each.steps())
        checkpoints = tuple(folder for folder in saved if _is_other_state(folder))
        scored = (name for name in results if _is_other_result(at, name, trained))
        return cls(store, tuple(trained), checkpoints, tuple(scored))

    def __bool__(self) -> bool:
        return bool(self.states or self.checkpoints or self.results)

    def __str__(self) -> str:
        parts = {"state": self.states, "checkpoint": self.checkpoints, "result": self.results}
        return ", ".join(count(len(made), name) for name, made in parts.items() if made)

    def note(self, remedy: str = "--fresh") -> str:
        """Say that they are reused, and which option makes them again."""
        return (
            f"made by other code than the running one: {self}; numbers may differ, "
            f"and {remedy} makes them again"
        )

    def delete(self, *, say: Say) -> None:
        """Delete them, and all results of these states."""
        say(f"deleting what other code made: {self}")
        at = Store(self.store)
        with lock_cleaning(self.store, say=say) as delete:
            for name in dict.fromkeys([*self.results, *_results_of(at, self.states)]):
                delete(at.folder(RESULT, name))
            for checkpoint in self.checkpoints:
                delete(checkpoint)
            for name in self.states:
                delete(at.folder(STATE, name))


def without_other_code(
    plan: Callable[[], Plan], *, fresh: bool, say: Say, note: Callable[[str], object]
) -> Plan:
    """Return a plan, made again while other code made a part of it, which `fresh` deletes."""
    while other := OtherCode.of_plan(current := plan()):
        if not fresh:
            note(other.note())
            break
        other.delete(say=say)
    return current


def _is_other_state(folder: Path, identity: str | None = None) -> bool:
    if not is_complete(folder):
        return False
    return is_other_code("pretraining", read_state_record(folder, identity=identity).code)


def _is_other_result(store: Store, name: str, states: Iterable[str]) -> bool:
    if not store.has(RESULT, name):
        return False
    record = store.result(name)
    made_by = [record.code] if record.code else []
    return record.state in states or is_other_code("finetuning", made_by)


def _results_of(store: Store, states: Iterable[str]) -> Iterator[str]:
    """Yield all results of some states, also those of other studies."""
    for name in store.walk(RESULT) if states else ():
        # Damaged or newer ones are left to the command that reads them.
        with suppress(CheckpointError, DataError, NewerFormatError):
            if store.result(name).state in states:
                yield name
