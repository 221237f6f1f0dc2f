"""Speed of jobs, and an estimate of the remaining time."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from biphasic.execution.graph import WorkItem


@dataclass
class _Running:
    """A job since its first progress report; a resumed job may start at a later step."""

    began: float
    first: float
    share: float


class Pace:
    """Estimates time from operations, at the speed of jobs of the same kind, else of all jobs."""

    def __init__(self, items: Iterable[WorkItem], *, num_slots: int) -> None:
        """Prepare for the remaining jobs."""
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
        """Record that a job was submitted to the executor."""
        with self._lock:
            self._began[item.id] = time.monotonic()

    def progress(self, job_id: str, share: float) -> None:
        """Record a job's progress as a share in [0, 1]."""
        with self._lock:
            running = self._running.setdefault(job_id, _Running(time.monotonic(), share, share))
            running.share = share

    def stopped(self, item: WorkItem) -> float:
        """Record that a job stopped; return its running time in seconds."""
        with self._lock:
            self._running.pop(item.id, None)
            began = self._began.pop(item.id, None)
        return 0.0 if began is None else time.monotonic() - began

    def done(self, item: WorkItem, seconds: float | None) -> None:
        """Record that a job is done, with its seconds; None if they are not representative."""
        with self._lock:
            self._left.pop(item.id, None)
            if seconds is not None:
                self._seconds[item.kind] += seconds * item.num_slots
                self._amounts[item.kind] += self._amount(item)

    def seconds_left(self) -> tuple[float, float] | None:
        """Return the device-seconds left, and the seconds until the end; None if not known yet."""
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
        """Return the operations of a job; 1 unless known for all jobs of its kind."""
        return item.cost if self._is_counted[item.kind] else 1.0

    def _seconds_per_amount(self) -> dict[str, float]:
        """Return, by kind, the device-seconds per operation, where known."""
        now = time.monotonic()
        seconds, amounts = self._seconds.copy(), self._amounts.copy()
        for identity, running in self._running.items():
            item = self._items[identity]
            if running.share > running.first:
                seconds[item.kind] += (now - running.began) * item.num_slots
                amounts[item.kind] += self._amount(item) * (running.share - running.first)
        speeds = {kind: seconds[kind] / amount for kind, amount in amounts.items() if amount}
        counted = [kind for kind in speeds if self._is_counted[kind]]
        if counted:  # other kinds use the speed of all known ones
            known = sum(seconds[kind] for kind in counted) / sum(amounts[kind] for kind in counted)
            for kind, is_counted in self._is_counted.items():
                if is_counted:
                    speeds.setdefault(kind, known)
        return speeds

    def _longest_path(self, left: dict[str, float]) -> float:
        """Return the seconds of the longest chain of dependent jobs."""
        paths: dict[str, float] = {}
        for item in self._items.values():  # dependencies come first
            seconds = left.get(item.id, 0.0) / item.num_slots
            paths[item.id] = seconds + paths.get(item.needs or "", 0.0)
        return max(paths.values(), default=0.0)
