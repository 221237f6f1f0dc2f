"""What is left of a study, as a graph: what each job waits for, and which paths are longest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from biphasic.execution.job import Job


@dataclass(frozen=True)
class WorkItem:
    """A job that is still to be done; the job itself is made when its turn comes.

    Attributes:
        id: Identity of the job.
        label: What people are shown.
        kind: What it does.
        needs: The item that must be done before; None, or one that is not in the graph, for none.
        cost: Operations it is expected to take, in FLOPs; 0 where nobody can tell.
        num_slots: Slots that it takes.
        arms: Names of the arms that need it.
        make: Gives the job.
        is_done: Asks the store, which alone knows.
    """

    id: str
    label: str
    kind: Literal["train", "finetune"]
    needs: str | None
    cost: float
    num_slots: int
    arms: tuple[str, ...]
    make: Callable[[], Job]
    is_done: Callable[[], bool]


def dependents(items: Iterable[WorkItem]) -> dict[str, list[str]]:
    """Return, by item, those that wait for it."""
    items = list(items)
    found: dict[str, list[str]] = {item.id: [] for item in items}
    for item in items:
        if item.needs in found:
            found[item.needs].append(item.id)
    return found


def longest_paths(items: Iterable[WorkItem]) -> dict[str, float]:
    """Return, by item, the cost of the longest path that begins with it.

    Who starts with the longest one ends soonest, as far as list scheduling can tell.
    """
    by_id = {item.id: item for item in items}
    waiting = dependents(by_id.values())
    order = [item.id for item in by_id.values() if item.needs not in by_id]
    for identity in order:  # grows while it is read: parents before children
        order.extend(waiting[identity])
    paths: dict[str, float] = {}
    for identity in reversed(order):
        after = max((paths[each] for each in waiting[identity]), default=0.0)
        # At least one each, so that of jobs without a known cost the longer chain comes first.
        paths[identity] = max(by_id[identity].cost, 1.0) + after
    return paths


def with_dependents(identity: str, waiting: Mapping[str, list[str]]) -> list[str]:
    """Return all items that cannot be done without one, in an order of need."""
    found = list(waiting[identity])
    for each in found:
        found.extend(waiting[each])
    return found
