"""Device time spent on a study's jobs, from their records, and an estimate of the rest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from biphasic.errors import DataError, reading
from biphasic.files import read_json_object
from biphasic.study.plan.cost import segment_cost
from biphasic.study.plan.finished import Finished
from biphasic.study.plan.plan import Plan
from biphasic.study.plan.summary import EXAMPLE_TOKENS, body_weights, group_flops
from biphasic.training.state import read_state_record


@dataclass
class _Kind:
    """Jobs of one kind: seconds and operations done, operations left."""

    seconds: float = 0.0
    done: float = 0.0
    left: float = 0.0

    @property
    def seconds_left(self) -> float | None:
        """Estimate at the speed of finished jobs; None if unknown."""
        if not self.left:
            return 0.0
        return self.seconds / self.done * self.left if self.seconds and self.done else None


def device_time(
    plan: Plan, store: Path, finished: Finished, *, vocab_size: int
) -> tuple[float, float | None]:
    """Return the device-seconds spent, and an estimate of those left.

    The estimate assumes the speed, in operations, of finished jobs of the same kind; None if there
    are none.

    Raises:
        DataError: A record is damaged.
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
        # Steps if operations are unknown: steps of one study cost about the same.
        amount = float(cost.flops or cost.steps)
        if segment.id in finished.states:
            state = read_state_record(store / "states" / segment.id)
            kind.seconds += state.seconds * int(state.compute.get("processes", 1))
            kind.done += amount
        else:
            kind.left += amount
    return kind


def _finetuning(plan: Plan, store: Path, vocab_size: int, finished: Finished) -> _Kind:
    kind = _Kind()
    bodies = body_weights(plan, vocab_size)
    for group in plan.groups:
        amount = float(group_flops(group, bodies[group.state], EXAMPLE_TOKENS) or len(group.grid))
        ids, size = list(group.run_ids()), len(group.grid)
        per_training = amount / size
        for names in (ids[index::size] for index in range(size)):  # of each scored task
            if finished.results.issuperset(names):
                # Each result includes the shared training; scoring is short in comparison.
                kind.seconds += max(_result_seconds(store, name) for name in names)
                kind.done += per_training
            else:
                kind.left += per_training
    return kind


def _result_seconds(store: Path, name: str) -> float:
    path = store / "finetunes" / name / "result.json"
    remedy = f"delete the folder {path.parent} and run again"
    with reading(path, DataError, failure="damaged record", remedy=remedy):
        return float(read_json_object(path, remedy=remedy).get("seconds", 0.0))
