"""The graph of remaining jobs: dependencies and longest paths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from biphasic.execution.job import Job


@dataclass(frozen=True)
class WorkItem:
    """A remaining job; `make` creates the job itself when it starts."""

    id: str
    label: str
    kind: Literal["train", "finetune"]
    # Item it depends on; None, or one that is not in the graph, for no dependency.
    needs: str | None
    cost: float  # expected operations, in FLOPs; 0 if unknown
    num_slots: int
    arms: tuple[str, ...]  # names of the arms that need it
    make: Callable[[], Job]
    is_done: Callable[[], bool]  # returns whether the store has its results


def dependents(items: Iterable[WorkItem]) -> dict[str, list[str]]:
    """Return, by item, the items that depend on it."""
    items = list(items)
    waiting: dict[str, list[str]] = {item.id: [] for item in items}
    for item in items:
        if item.needs in waiting:
            waiting[item.needs].append(item.id)
    return waiting


def longest_paths(items: Iterable[WorkItem]) -> dict[str, float]:
    """Return, by item, the cost of the longest path that starts with it."""
    by_id = {item.id: item for item in items}
    waiting = dependents(by_id.values())
    order = [item.id for item in by_id.values() if item.needs not in by_id]
    for identity in order:  # grows while it is read: parents before children
        order.extend(waiting[identity])
    paths: dict[str, float] = {}
    for identity in reversed(order):
        after = max((paths[dependent] for dependent in waiting[identity]), default=0.0)
        # At least 1 each: among jobs of unknown cost, longer chains come first.
        paths[identity] = max(by_id[identity].cost, 1.0) + after
    return paths


def with_dependents(identity: str, waiting: Mapping[str, list[str]]) -> list[str]:
    """Return all direct and indirect dependents of an item, in dependency order."""
    identities = list(waiting[identity])
    for dependent in identities:
        identities.extend(waiting[dependent])
    return identities
