"""Progress of running jobs: bars on a terminal, lines elsewhere, and an estimate of the end."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import TaskID

from biphasic.amounts import speed
from biphasic.errors import LockHeldError, StoppedError, visible
from biphasic.execution.job import Progress, Report, RequeuedError, WorkItem
from biphasic.progress import Bars, end_expected, progress_bar, say_on, task_text

_MOST_NAMED = 4  # running jobs that a line describes


class StudyDisplay:
    """A `Watcher` that shows one bar for all jobs and one per running job."""

    def __init__(self, console: Console, items: Iterable[WorkItem], *, num_slots: int) -> None:
        """Prepare for the remaining jobs; bars and lines begin on entry."""
        self._say = say_on(console)
        items = list(items)
        self._labels = {item.id: visible(item.label) for item in items}
        self.pace = Pace(items, num_slots=num_slots)
        self._taken: set[str] = set()
        self._failed: set[str] = set()
        self._lock = threading.Lock()
        self._bars = Bars(console, line=self.line)
        self._all = self._bars.add_task("all jobs", total=len(items), text="", unit="jobs")
        self._running: dict[str, TaskID] = {}
        self._num_ended = 0
        self._began = time.monotonic()

    def __enter__(self) -> StudyDisplay:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bars."""
        self._bars.stop()

    def progress(self, job_id: str, progress: Progress) -> None:
        """Update a job's bar; called from executor threads."""
        self.pace.progress(job_id, progress.done / max(progress.total, 1))
        with self._lock:
            if job_id not in self._running:
                label = self._labels[job_id]
                self._running[job_id] = self._bars.add_task(
                    label, total=None, text="", unit="steps"
                )
            self._bars.update(
                self._running[job_id],
                completed=progress.done,
                total=progress.total or None,
                text=", ".join(filter(None, (progress.text, progress.place))),
            )
            if progress.note:
                self._say(f"{self._labels[job_id]}: {progress.note}")

    def started(self, item: WorkItem) -> None:
        """Start timing a job; its bar appears with its first progress."""
        self.pace.started(item)

    def ended(self, item: WorkItem, error: BaseException | None, *, elsewhere: bool) -> None:
        """Replace a job's bar with a line."""
        seconds = self.pace.stopped(item)
        if error is None:
            self.pace.done(item, None if elsewhere else seconds)
        with self._lock:
            self._remove(item.id)
            self._bars.advance(self._all)
            self._num_ended += 1
            if error is not None:
                self._failed.add(item.id)
                outcome = f"FAILED: {item.label}: {error}"
            else:
                outcome = f"{'done by another process' if elsewhere else 'done'}: {item.label}"
            self._say(f"[{self._num_ended}/{len(self._labels)}] {outcome}")

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
            self._num_ended -= 1
            self._failed.discard(item.id)
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
            failed, elapsed = len(self._failed), time.monotonic() - self._began
            parts = [
                f"{self._num_ended - failed:,} of {len(self._labels):,} jobs done",
                f"{failed:,} failed" if failed else "",
                speed(self._num_ended / elapsed if elapsed else None),
                end_expected(None if left is None else left[1]),
            ]
            named = [f"{task.description} ({task_text(task)})" for task in running[:_MOST_NAMED]]
        if len(running) > _MOST_NAMED:
            named.append(f"{len(running) - _MOST_NAMED:,} more")
        return "; running: ".join(filter(None, (", ".join(filter(None, parts)), ", ".join(named))))

    def _remove(self, job_id: str) -> None:
        if job_id in self._running:
            self._bars.remove_task(self._running.pop(job_id))


@contextmanager
def job_bar(console: Console, label: str) -> Iterator[Report]:
    """Show the progress of a job in this process; yield its progress callback."""
    with progress_bar(console, label) as report:

        def forward(progress: Progress) -> None:
            report(progress.done, progress.total, progress.text)
            if progress.note:
                say_on(console)(progress.note)

        yield forward


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
        self._spent = 0.0  # device-seconds of the jobs that have stopped
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
            seconds = 0.0 if began is None else time.monotonic() - began
            self._spent += seconds * item.num_slots
        return seconds

    def seconds_spent(self) -> float:
        """Return the device-seconds of all jobs so far, whether they succeeded or not."""
        with self._lock:
            now, began = time.monotonic(), self._began.items()
            return self._spent + sum((now - at) * self._items[job].num_slots for job, at in began)

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
        paths: dict[str, float] = {}  # seconds of chains of dependent jobs
        for item in self._items.values():  # dependencies come first
            seconds = left.get(item.id, 0.0) / item.num_slots
            paths[item.id] = seconds + paths.get(item.needs or "", 0.0)
        return total, max(total / self._num_slots, *paths.values(), 0.0)

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
