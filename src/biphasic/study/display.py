"""What a person sees while a study runs: bars on a terminal, a line per job elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.text import Text

from biphasic.errors import StoppedError, TakenError, visible
from biphasic.study.jobs import Progress, Report
from biphasic.study.work import WorkItem


class StudyDisplay:
    """One bar for all jobs, one for each that runs; told what happens by a `Scheduler`."""

    def __init__(self, console: Console, items: Iterable[WorkItem]) -> None:
        """Prepare; bars appear on entry, and only on a terminal."""
        self._console = console
        self._labels = {item.id: item.label for item in items}
        self._taken: set[str] = set()
        self._lock = threading.Lock()
        self._bars = _bars(console)
        self._all = self._bars.add_task("all jobs", total=len(self._labels), text="")
        self._running: dict[str, TaskID] = {}
        self._num_ended = 0

    def __enter__(self) -> StudyDisplay:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the bars."""
        self._bars.stop()

    def progress(self, job_id: str, progress: Progress) -> None:
        """Move a job's bar; called from threads of an engine."""
        with self._lock:
            if job_id not in self._running:
                self._running[job_id] = self._bars.add_task(visible(self._labels[job_id]), text="")
            self._bars.update(
                self._running[job_id],
                completed=progress.done,
                total=progress.total,
                text=progress.text,
            )

    def started(self, item: WorkItem) -> None:
        """Show nothing before there is progress."""

    def ended(self, item: WorkItem, error: BaseException | None, *, elsewhere: bool) -> None:
        """Replace a job's bar by a line."""
        with self._lock:
            self._remove(item.id)
            self._bars.advance(self._all)
            self._num_ended += 1
            if error is not None:
                outcome = f"FAILED: {item.label}: {error}"
            else:
                outcome = f"{'done elsewhere' if elsewhere else 'done'}: {item.label}"
            self._say(f"[{self._num_ended}/{len(self._labels)}] {outcome}")

    def delayed(self, item: WorkItem, error: BaseException) -> None:
        """Remove a job's bar, and say why it comes up again later."""
        with self._lock:
            self._remove(item.id)
            if isinstance(error, TakenError):
                if item.id not in self._taken:
                    self._taken.add(item.id)
                    self._say(f"waiting for {item.label}, done now by {error.holder}")
            elif not isinstance(error, StoppedError):
                self._say(f"will be tried again: {item.label}: {error}")

    def revived(self, item: WorkItem) -> None:
        """Count a job that was set aside as still to be done."""
        with self._lock:
            self._num_ended -= 1
            self._bars.advance(self._all, -1)
            self._say(f"tried again on request: {item.label}")

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        with self._lock:
            self._say(text)

    def tick(self) -> None:
        """Do nothing: bars move by themselves."""

    def _remove(self, job_id: str) -> None:
        if job_id in self._running:
            self._bars.remove_task(self._running.pop(job_id))

    def _say(self, text: str) -> None:
        self._console.print(Text(visible(text)), soft_wrap=True)


@contextmanager
def job_bar(console: Console, label: str) -> Iterator[Report]:
    """Show one bar, on a terminal only, for a job in this process; yield what moves it."""
    with _bars(console) as bars:
        bar = bars.add_task(visible(label), text="")

        def report(progress: Progress) -> None:
            bars.update(bar, completed=progress.done, total=progress.total, text=progress.text)

        yield report


def _bars(console: Console) -> Bars:
    """Return progress bars that stay silent where nobody watches."""
    return Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}", markup=False),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
