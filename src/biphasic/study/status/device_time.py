"""Time that devices have spent on a study's jobs, by their records, and what is left of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from biphasic.errors import DataError, reading
from biphasic.files import read_json_object
from biphasic.study.plan.cost import segment_cost
from biphasic.study.plan.finished import Finished
from biphasic.study.plan.plan import FinetuneGroup, Plan
from biphasic.study.plan.summary import EXAMPLE_TOKENS, body_weights, group_flops
from biphasic.training.state import read_state_record


@dataclass
class _Kind:
    """Jobs of a kind: seconds and operations of those that are done, operations of the others."""

    seconds: float = 0.0
    done: float = 0.0
    left: float = 0.0

    @property
    def seconds_left(self) -> float | None:
        """As those went that are done; None where that cannot be told."""
        if not self.left:
            return 0.0
        return self.seconds / self.done * self.left if self.seconds and self.done else None


def device_time(
    plan: Plan, store: Path, finished: Finished, *, vocab_size: int
) -> tuple[float, float | None]:
    """Return the device-seconds that were spent, and an estimate of those that are left.

    What is left is reckoned by operations, at the speed of the jobs of the same kind that are done;
    None where there are none.

    Args:
        plan: The study's plan.
        store: Where finished work is.
        finished: What is there.
        vocab_size: Entries of the vocabulary.

    Raises:
        DataError: A record is damaged; it is named.
    """
    kinds = (
        _training(plan, store, vocab_size, finished),
        _finetuning(plan, store, vocab_size, finished),
    )
    left = [kind.seconds_left for kind in kinds]
    known = [seconds for seconds in left if seconds is not None]
    return sum(kind.seconds for kind in kinds), sum(known) if len(known) == len(left) else None


def _training(plan: Plan, store: Path, vocab_size: int, finished: Finished) -> _Kind:
    kind = _Kind()
    for segment in plan.segments:
        cost = segment_cost(segment, vocab_size)
        # Steps where operations are not known: those of one study are much alike.
        amount = float(cost.flops or cost.steps)
        if segment.id in finished.states:
            kind.seconds += _state_seconds(store / "states" / segment.id)
            kind.done += amount
        else:
            kind.left += amount
    return kind


def _finetuning(plan: Plan, store: Path, vocab_size: int, finished: Finished) -> _Kind:
    kind = _Kind()
    bodies = body_weights(plan, vocab_size)
    for group in plan.groups:
        amount = float(group_flops(group, bodies[group.state], EXAMPLE_TOKENS) or len(group.grid))
        each = amount / len(group.grid)
        for names in _trainings(group):
            if finished.results.issuperset(names):
                # Each result counts the training that it shares; scoring is short beside it.
                kind.seconds += max(_result_seconds(store, name) for name in names)
                kind.done += each
            else:
                kind.left += each
    return kind


def _trainings(group: FinetuneGroup) -> Iterator[list[str]]:
    """Yield the results of each training of a group, one for each task that is scored."""
    names, size = list(group.run_ids()), len(group.grid)
    for index in range(size):
        yield names[index::size]


def _state_seconds(folder: Path) -> float:
    state = read_state_record(folder)
    return state.seconds * int(state.compute.get("processes", 1))


def _result_seconds(store: Path, name: str) -> float:
    path = store / "finetunes" / name / "result.json"
    remedy = f"delete the folder {path.parent} and run again"
    with reading(path, DataError, failure="damaged record", remedy=remedy):
        return float(read_json_object(path, remedy=remedy).get("seconds", 0.0))
