"""How fast jobs go, and how long those that are left will take."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from biphasic.execution.graph import WorkItem


@dataclass
class _Running:
    """A job since it first told how far it is; one that was resumed may begin in the middle."""

    began: float
    first: float
    share: float


class Pace:
    """Reckons by operations, at the speed of jobs of the same kind; else at that of all jobs."""

    def __init__(self, items: Iterable[WorkItem], *, num_slots: int) -> None:
        """Prepare.

        Args:
            items: The work that is left.
            num_slots: Jobs at once.
        """
        self._items = {item.id: item for item in items}
        self._num_slots = num_slots
        self._is_counted = {
            kind: all(item.cost for item in self._items.values() if item.kind == kind)
            for kind in {item.kind for item in self._items.values()}
        }
        self._began: dict[str, float] = {}
        self._running: dict[str, _Running] = {}
        self._left = dict(self._items)
        # Device-seconds and amounts of the jobs that have ended, by kind.
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._amounts: defaultdict[str, float] = defaultdict(float)
        self._lock = threading.Lock()

    def started(self, item: WorkItem) -> None:
        """Note that a job was given to the engine."""
        with self._lock:
            self._began[item.id] = time.monotonic()

    def progress(self, job_id: str, share: float) -> None:
        """Note how much of a job is done, of 1."""
        with self._lock:
            running = self._running.setdefault(job_id, _Running(time.monotonic(), share, share))
            running.share = share

    def stopped(self, item: WorkItem) -> float:
        """Note that a job runs no more; return for how many seconds it did."""
        with self._lock:
            self._running.pop(item.id, None)
            began = self._began.pop(item.id, None)
        return 0.0 if began is None else time.monotonic() - began

    def done(self, item: WorkItem, seconds: float | None) -> None:
        """Note that a job is done, after so many seconds; None where that says nothing."""
        with self._lock:
            self._left.pop(item.id, None)
            if seconds is not None:
                self._seconds[item.kind] += seconds * item.num_slots
                self._amounts[item.kind] += self._amount(item)

    def seconds_left(self) -> tuple[float, float] | None:
        """Return the device-seconds that are left, and the seconds until the end.

        None where no job has told enough.
        """
        with self._lock:
            speeds = self._seconds_per_amount()
            left: dict[str, float] = {}
            for item in self._left.values():
                if (speed := speeds.get(item.kind)) is None:
                    return None
                running = self._running.get(item.id)
                left[item.id] = self._amount(item) * (1.0 - (running.share if running else 0.0))
                left[item.id] *= speed
        total = sum(left.values())
        return total, max(total / self._num_slots, self._longest_path(left))

    def _amount(self, item: WorkItem) -> float:
        """Return the operations of a job; 1 where they are not known of all jobs of its kind."""
        return item.cost if self._is_counted[item.kind] else 1.0

    def _seconds_per_amount(self) -> dict[str, float]:
        """Return, by kind, the device-seconds of an operation, as far as they can be told."""
        now = time.monotonic()
        seconds, amounts = self._seconds.copy(), self._amounts.copy()
        for identity, running in self._running.items():
            item = self._items[identity]
            if running.share > running.first:
                seconds[item.kind] += (now - running.began) * item.num_slots
                amounts[item.kind] += self._amount(item) * (running.share - running.first)
        speeds = {kind: seconds[kind] / amount for kind, amount in amounts.items() if amount}
        counted = [kind for kind in speeds if self._is_counted[kind]]
        if counted:  # a kind without an example goes as the others do
            known = sum(seconds[kind] for kind in counted) / sum(amounts[kind] for kind in counted)
            for kind, is_counted in self._is_counted.items():
                if is_counted:
                    speeds.setdefault(kind, known)
        return speeds

    def _longest_path(self, left: dict[str, float]) -> float:
        """Return the seconds of the longest chain of jobs that wait for one another."""
        paths: dict[str, float] = {}
        for item in self._items.values():  # those that are needed come before those that need them
            own = left.get(item.id, 0.0) / item.num_slots
            paths[item.id] = own + paths.get(item.needs or "", 0.0)
        return max(paths.values(), default=0.0)
