"""Progress of running jobs: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from rich.console import Console
from rich.progress import TaskID

from biphasic.amounts import speed
from biphasic.errors import LockHeldError, StoppedError, visible
from biphasic.execution.job import Failure, Progress, Report, RequeuedError, WorkItem
from biphasic.progress import Bars, end_expected, progress_bar, say_on, task_text

_MOST_NAMED = 4  # running jobs that a line describes


@dataclass
class RunningItem:
    """A job that was submitted to the executor."""

    started: datetime  # when it was submitted, or left the queue of a cluster
    progress: Progress | None = None
    bar: TaskID | None = None


class StudyDisplay:
    """A `Watcher` that keeps what became of jobs, with one bar for all and one per running job."""

    def __init__(self, console: Console, items: Iterable[WorkItem], *, num_slots: int) -> None:
        """Prepare for the remaining jobs; bars and lines begin on entry."""
        self.items = {item.id: item for item in items}
        self.pace = Pace(self.items.values(), num_slots=num_slots)
        self.running: dict[str, RunningItem] = {}
        self.done: set[str] = set()
        self.failed: dict[str, Failure] = {}
        self._taken: set[str] = set()
        self._lock = threading.Lock()
        self._say = say_on(console)
        self._bars = Bars(console, line=self.line)
        self._all = self._bars.add_task("all jobs", total=len(self.items), text="", unit="jobs")
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bars."""
        self._bars.stop()

    def progress(self, job_id: str, progress: Progress) -> None:
        """Update a job's bar; called from executor threads."""
        with self._lock:
            job = self.running.get(job_id)
            if job is None:  # it has ended
                return
            if job.progress is None and progress.place:  # it has left the cluster's queue
                job.started = datetime.now(UTC)
                self.pace.started(self.items[job_id])
            job.progress = progress
            self.pace.progress(job_id, progress.done, progress.total)
            label = visible(self.items[job_id].label)
            if job.bar is None:
                job.bar = self._bars.add_task(label, total=None, text="", unit="steps")
            self._bars.update(
                job.bar,
                completed=progress.done,
                total=progress.total or None,
                text=", ".join(filter(None, (progress.text, progress.place))),
            )
            if progress.note:
                self._say(f"{label}: {progress.note}")

    def started(self, item: WorkItem) -> None:
        """Start timing a job; its bar appears with its first progress."""
        self.pace.started(item)
        with self._lock:
            self.running[item.id] = RunningItem(datetime.now(UTC))

    def ended(self, item: WorkItem, failure: Failure | None, *, elsewhere: bool) -> None:
        """Replace a job's bar with a line."""
        self.pace.stopped(item, is_done=failure is None, is_example=not elsewhere)
        with self._lock:
            self._remove(item.id)
            self._bars.advance(self._all)
            if failure is not None:
                self.failed[item.id] = failure
                outcome = f"FAILED: {item.label}: {failure.error}"
            else:
                self.done.add(item.id)
                outcome = f"{'done by another process' if elsewhere else 'done'}: {item.label}"
            self._say(f"[{len(self.done) + len(self.failed)}/{len(self.items)}] {outcome}")

    def delayed(self, item: WorkItem, error: BaseException) -> None:
        """Remove a job's bar, and print why it runs again later."""
        self.pace.stopped(item)
        with self._lock:
            self._remove(item.id)
            if isinstance(error, LockHeldError):
                if item.id not in self._taken:
                    self._taken.add(item.id)
                    self._say(f"waiting for {item.label}, which {error.owner} is running")
            elif isinstance(error, RequeuedError):
                self._say(f"runs again: {item.label}: {error}")
            elif not isinstance(error, StoppedError):
                self._say(f"will retry: {item.label}: {error}")

    def revived(self, item: WorkItem) -> None:
        """Count a failed job as remaining again."""
        with self._lock:
            del self.failed[item.id]
            self._bars.advance(self._all, -1)
            self._say(f"retrying on request: {item.label}")

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        with self._lock:
            self._say(text)

    def tick(self) -> None:
        """Do nothing: bars refresh by themselves."""

    def line(self) -> str:
        """Return the progress of all jobs in one line, for consoles without bars."""
        left = self.pace.seconds_left()
        with self._lock:
            _, *running = self._bars.tasks
            elapsed, ended = time.monotonic() - self._began, len(self.done) + len(self.failed)
            parts = [
                f"{len(self.done):,} of {len(self.items):,} jobs done",
                f"{len(self.failed):,} failed" if self.failed else "",
                speed(ended / elapsed if elapsed else None),
                end_expected(None if left is None else left[1]),
            ]
            named = [f"{task.description} ({task_text(task)})" for task in running[:_MOST_NAMED]]
        if len(running) > _MOST_NAMED:
            named.append(f"{len(running) - _MOST_NAMED:,} more")
        return "; running: ".join(filter(None, (", ".join(filter(None, parts)), ", ".join(named))))

    def _remove(self, job_id: str) -> None:
        job = self.running.pop(job_id, None)
        if job is not None and job.bar is not None:
            self._bars.remove_task(job.bar)


@contextmanager
def job_bar(console: Console, label: str) -> Iterator[Report]:
    """Show the progress of a job in this process; yield its progress callback."""
    with progress_bar(console, label) as report:

        def forward(progress: Progress) -> None:
            report(progress.done, progress.total or None, progress.text)
            if progress.note:
                say_on(console)(progress.note)

        yield forward


class Speeds:
    """Device-seconds per operation of each kind of jobs; one without finished jobs has the mean.

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
    first: int  # Steps that were done at that report.
    planned: int  # All steps, as known then; a grid that is extended has more later.
    done: int
    total: int


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

    def progress(self, job_id: str, done: int, total: int) -> None:
        """Record the steps that a job has done, those before it was resumed included, and all."""
        if not total:  # not known yet
            return
        first = _Running(time.monotonic(), done, total, done, total)
        with self._lock:
            running = self._running.setdefault(job_id, first)
            running.done, running.total = done, total

    def stopped(self, item: WorkItem, *, is_done: bool = False, is_example: bool = True) -> None:
        """Record that a job stopped, whether it is done, and whether the speed counts it."""
        with self._lock:
            running, now = self._running.pop(item.id, None), time.monotonic()
            seconds = (now - self._began.pop(item.id, now)) * item.num_slots
            self._spent += seconds
            if is_done:
                self._left.pop(item.id, None)
            # Its first report came after its first step; those before it were not of this run.
            before = max(running.first - 1, 0) if running else 0
            share = (running.total - before) / running.planned if running else 1.0
            if is_done and is_example:
                self._speeds.add(item.kind, self._amount(item) * share, seconds)

    def seconds_spent(self) -> float:
        """Return the device-seconds of all jobs so far, whether they succeeded or not."""
        with self._lock:
            now, began = time.monotonic(), self._began.items()
            return self._spent + sum((now - at) * self._items[job].num_slots for job, at in began)

    def seconds_left(self) -> tuple[float, float] | None:
        """Return the device-seconds left, and the seconds until the end; None if not known yet."""
        with self._lock:
            speeds, now = deepcopy(self._speeds), time.monotonic()
            shares: dict[str, float] = {}  # that running jobs have left
            for identity, running in self._running.items():
                item, steps = self._items[identity], running.done - running.first
                shares[identity] = (running.total - running.done) / running.planned
                if steps > 0:
                    amount = self._amount(item) * steps / running.planned
                    speeds.add(item.kind, amount, (now - running.began) * item.num_slots)
            speed = {kind: speeds.of(kind) for kind in {item.kind for item in self._left.values()}}
            left: dict[str, float] = {}
            for item in self._left.values():
                if (each := speed[item.kind]) is None:
                    return None
                left[item.id] = self._amount(item) * shares.get(item.id, 1.0) * each
        total = sum(left.values())
        paths: dict[str, float] = {}  # seconds of chains of dependent jobs
        for item in self._items.values():  # dependencies come first
            seconds = left.get(item.id, 0.0) / item.num_slots
            paths[item.id] = seconds + paths.get(item.needs or "", 0.0)
        return total, max(total / self._num_slots, *paths.values(), 0.0)

    def _amount(self, item: WorkItem) -> float:
        return 1.0 if item.kind in self._uncounted else item.cost
