"""Progress of running jobs: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import TaskID

from biphasic.amounts import speed
from biphasic.errors import LockHeldError, StoppedError, visible
from biphasic.execution.job import Progress, Report, RequeuedError, WorkItem
from biphasic.execution.pace import Pace
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
        self.pace.stopped(item, is_done=error is None, is_example=not elsewhere)
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
