"""What a person sees while a study runs: bars on a terminal, a line per job elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
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

from biphasic.study.jobs import Job, Progress, Report


class StudyDisplay:
    """One bar for the study, one for each running job."""

    def __init__(self, console: Console, *, num_jobs: int) -> None:
        """Prepare; bars appear on entry, and only on a terminal."""
        self._console = console
        self._lock = threading.Lock()
        self._bars = _bars(console)
        self._study = self._bars.add_task("all jobs", total=num_jobs, text="")
        self._running: dict[str, TaskID] = {}

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

    def progress(self, job: Job, progress: Progress) -> None:
        """Move a job's bar."""
        with self._lock:
            if job.id not in self._running:
                self._running[job.id] = self._bars.add_task(job.label, text="")
            self._bars.update(
                self._running[job.id],
                completed=progress.done,
                total=progress.total,
                text=progress.text,
            )

    def ended(self, job: Job, error: BaseException | None) -> None:
        """Replace a job's bar by a line."""
        with self._lock:
            if job.id in self._running:
                self._bars.remove_task(self._running.pop(job.id))
            self._bars.advance(self._study)
            task = self._bars.tasks[0]
            count = f"[{int(task.completed)}/{int(task.total or 0)}]"
            outcome = f"FAILED: {error}" if error else f"done: {job.label}"
            self._console.print(Text(f"{count} {outcome}"), soft_wrap=True)


@contextmanager
def job_bar(console: Console, job: Job) -> Iterator[Report]:
    """Show one bar, on a terminal only, for a job in this process; yield what moves it."""
    with _bars(console) as bars:
        bar = bars.add_task(job.label, text="")

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
