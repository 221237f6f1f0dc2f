"""How long jobs take: device-seconds by operations, at the speed of jobs that have run."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass

from biphasic.execution.job import WorkItem


class Speeds:
    """Device-seconds per operation of each kind of jobs; a kind without example is as fast as all.

    Where the operations of a kind are not known (`uncounted`), another amount stands for them, and
    its speed says nothing about other kinds.
    """

    def __init__(self, uncounted: Iterable[str] = ()) -> None:
        """Begin without examples."""
        self._uncounted = frozenset(uncounted)
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._amounts: defaultdict[str, float] = defaultdict(float)

    @property
    def seconds(self) -> float:
        """The device-seconds of all jobs that have run."""
        return sum(self._seconds.values())

    def add(self, kind: str, amount: float, seconds: float) -> None:
        """Add jobs that have run."""
        self._seconds[kind] += seconds
        self._amounts[kind] += amount

    def of(self, kind: str) -> float | None:
        """Return the device-seconds per operation of a kind; None if not known."""
        is_known = bool(self._amounts[kind])
        kinds = [kind] if is_known else self._amounts.keys() - self._uncounted
        amount = sum(self._amounts[each] for each in kinds)
        if not amount or (kind in self._uncounted and not is_known):
            return None
        return sum(self._seconds[each] for each in kinds) / amount


@dataclass
class _Running:
    """A job since its first progress report; a resumed job may start at a later step."""

    began: float
    first: float
    share: float


class Pace:
    """The time that the jobs of a run have taken and will take."""

    def __init__(self, items: Iterable[WorkItem], *, num_slots: int) -> None:
        """Prepare for the remaining jobs."""
        self._items = {item.id: item for item in items}
        self._num_slots = num_slots
        # A job counts as 1 unless the operations of all jobs of its kind are known.
        self._uncounted = {item.kind for item in self._items.values() if not item.cost}
        self._began: dict[str, float] = {}
        self._running: dict[str, _Running] = {}
        self._left = dict(self._items)
        self._spent = 0.0  # device-seconds of the jobs that have stopped
        self._speeds = Speeds(self._uncounted)  # of the jobs that have ended
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

    def stopped(self, item: WorkItem, *, is_done: bool = False, is_example: bool = True) -> None:
        """Record that a job stopped, and whether it is done and its time is that of others."""
        with self._lock:
            self._running.pop(item.id, None)
            now = time.monotonic()
            seconds = (now - self._began.pop(item.id, now)) * item.num_slots
            self._spent += seconds
            if is_done:
                self._left.pop(item.id, None)
            if is_done and is_example:
                self._speeds.add(item.kind, self._amount(item), seconds)

    def seconds_spent(self) -> float:
        """Return the device-seconds of all jobs so far, whether they succeeded or not."""
        with self._lock:
            now, began = time.monotonic(), self._began.items()
            return self._spent + sum((now - at) * self._items[job].num_slots for job, at in began)

    def seconds_left(self) -> tuple[float, float] | None:
        """Return the device-seconds left, and the seconds until the end; None if not known yet."""
        with self._lock:
            speeds, now = deepcopy(self._speeds), time.monotonic()
            for identity, running in self._running.items():
                item, share = self._items[identity], running.share - running.first
                if share > 0:
                    seconds = (now - running.began) * item.num_slots
                    speeds.add(item.kind, self._amount(item) * share, seconds)
            shares = {identity: running.share for identity, running in self._running.items()}
            speed = {kind: speeds.of(kind) for kind in {item.kind for item in self._left.values()}}
            left: dict[str, float] = {}
            for item in self._left.values():
                if (each := speed[item.kind]) is None:
                    return None
                left[item.id] = self._amount(item) * (1.0 - shares.get(item.id, 0.0)) * each
        total = sum(left.values())
        paths: dict[str, float] = {}  # seconds of chains of dependent jobs
        for item in self._items.values():  # dependencies come first
            seconds = left.get(item.id, 0.0) / item.num_slots
            paths[item.id] = seconds + paths.get(item.needs or "", 0.0)
        return total, max(total / self._num_slots, *paths.values(), 0.0)

    def _amount(self, item: WorkItem) -> float:
        return 1.0 if item.kind in self._uncounted else item.cost
