"""Finished work that other code made: said in a line, and deleted to be made again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from biphasic.amounts import count
from biphasic.errors import DataError
from biphasic.files import is_complete, read_json, remove
from biphasic.locks import Say, lock_cleaning, refuse_running_work
from biphasic.numerics import is_other_code
from biphasic.sealed import read_result_record
from biphasic.study.plan.plan import Plan
from biphasic.training.state import Checkpoints, read_state_record


@dataclass(frozen=True)
class OtherCode:
    """States, checkpoints and results of a store that other code made.

    Results of such states count as well.
    """

    store: Path
    states: tuple[str, ...] = ()
    checkpoints: tuple[Path, ...] = ()
    results: tuple[str, ...] = ()

    @classmethod
    def of_plan(cls, plan: Plan, store: Path) -> OtherCode:
        """Find what other code made of a plan, and of the states that it continues from."""
        parents = (segment.parent for segment in plan.segments if segment.parent)
        states = dict.fromkeys([*(segment.id for segment in plan.segments), *parents])
        segments = [(segment.id, segment.start) for segment in plan.segments]
        results = (name for group in plan.groups for name in group.run_ids())
        return cls.of(store, states, segments, results)

    @classmethod
    def of(
        cls,
        store: Path,
        states: Iterable[str] = (),
        segments: Iterable[tuple[str, int]] = (),
        results: Iterable[str] = (),
    ) -> OtherCode:
        """Find what other code made of states, of segments (end, first step), and of results."""
        trained = [name for name in states if _is_other_state(store / "states" / name, name)]
        progress = (Checkpoints.of(store, name, start=start) for name, start in segments)
        saved = (each.path(step) for each in progress for step in each.steps())
        checkpoints = tuple(folder for folder in saved if _is_other_state(folder))
        scored = (name for name in results if _is_other_result(store / "finetunes" / name, trained))
        return cls(store, tuple(trained), checkpoints, tuple(scored))

    def __bool__(self) -> bool:
        return bool(self.states or self.checkpoints or self.results)

    def __str__(self) -> str:
        counts = {
            "state": len(self.states),
            "checkpoint": len(self.checkpoints),
            "result": len(self.results),
        }
        return ", ".join(count(number, name) for name, number in counts.items() if number)

    def note(self, remedy: str = "--fresh") -> str:
        """Say that they are reused, and which option makes them again."""
        return (
            f"made by other code than the running one: {self}; numbers may differ, "
            f"and {remedy} makes them again"
        )

    def delete(self, *, say: Say) -> None:
        """Delete them, and all results of these states."""
        say(f"deleting what other code made: {self}")
        finetunes = self.store / "finetunes"
        with lock_cleaning(self.store) as cleaner:
            refuse_running_work(self.store, say=say)
            results = dict.fromkeys([*self.results, *_results_of(finetunes, self.states)])
            paths = (
                *(finetunes / name for name in results),
                *self.checkpoints,
                *(self.store / "states" / name for name in self.states),
            )
            for path in paths:
                cleaner.check()  # after a suspension, another process may work here
                remove(path)


def _is_other_state(folder: Path, identity: str | None = None) -> bool:
    if not is_complete(folder):
        return False
    return is_other_code("pretraining", read_state_record(folder, identity=identity).code)


def _is_other_result(folder: Path, states: Iterable[str]) -> bool:
    if not is_complete(folder):
        return False
    record = read_result_record(folder)
    made_by = [record.code] if record.code else []
    return record.state in states or is_other_code("finetuning", made_by)


def _results_of(folder: Path, states: Iterable[str]) -> Iterator[str]:
    """Yield all results of some states, also those of other studies."""
    for path in folder.glob("*/result.json") if states else ():
        try:
            if read_json(path)["state"] in states:
                yield path.parent.name
        except (DataError, KeyError, TypeError):
            continue  # damaged, which whoever needs it is told
