"""`progress.json`: the progress of a running study, for other processes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from biphasic.amounts import clock, hours, tried
from biphasic.config import Config
from biphasic.errors import DataError
from biphasic.files import read_json, write_text
from biphasic.shown import Shown

_MOST_ARMS = 40
_BAR = 20

_FILE = "progress.json"


class RunningJob(Config):
    """A job in progress."""

    id: str
    label: str
    kind: str
    done: int = 0  # Steps so far.
    total: int | None = None  # Total steps; None before the first report.
    text: str = ""  # A few words, such as the loss.
    # Host and block of a cluster; empty on this machine, or in the cluster's queue.
    place: str = ""
    started: str  # When it started, or was submitted to the executor: ISO 8601, UTC.


class FailedJob(Config):
    """A failed job."""

    id: str
    label: str
    error: str  # First line of the error.
    tries: int
    log: str | None  # Path of the log.


class ArmProgress(Config):
    """Jobs that an arm needs; shared ones count for each arm."""

    done: int
    total: int


class JobCounts(Config):
    """All jobs of a study by status."""

    done: int
    running: int
    waiting: int
    failed: int  # Failed jobs.
    blocked: int  # Jobs that need a failed one.


class RunnerRecord(Config):
    """The process that runs a study."""

    host: str
    pid: int
    since: str  # ISO 8601, UTC.
    # What runs its jobs, with the hash of a plugin's code.
    executor: Annotated[str, Field(exclude_if=lambda name: name == "local")] = "local"


class StudyProgress(Config):
    """What a runner records of its study, and a status says."""

    study: str  # Its name.
    running: tuple[RunningJob, ...] = ()
    failures: tuple[FailedJob, ...] = ()  # Failed jobs of this run or the last one.
    by_arm: dict[str, ArmProgress] = Field(default_factory=dict)
    # Slots times seconds, of jobs of this run; after it, of all results that the study uses.
    device_seconds_spent: float | None = None
    # Estimated from finished jobs of the same kind; None if there are none.
    device_seconds_left: float | None = None


class ProgressRecord(StudyProgress):
    """Progress of a study, in `progress.json`."""

    format: Literal["biphasic.progress/1"] = "biphasic.progress/1"
    counts: JobCounts
    runner: RunnerRecord
    updated: str  # ISO 8601, UTC.
    is_over: bool  # Whether the runner has exited; jobs may still be missing.
    seconds_left: float | None  # Estimated seconds until the end; None if unknown.


class StudyStatus(Shown, StudyProgress):
    """Status of a study, also printed by `--json`."""

    format: Literal["biphasic.status/1"] = "biphasic.status/1"
    folder: Path  # Its folder.
    # Phase; `preparing`: text and tasks are being built, and jobs are not counted yet.
    phase: Literal["running", "preparing", "unfinished", "finished"]
    runner: str | None  # The process that runs it.
    counts: JobCounts | None = None  # All its jobs; None while preparing.
    eta: str | None = None  # Expected end of a running study, ISO 8601, UTC; None if unknown.
    notes: tuple[str, ...] = ()  # Notes, one sentence each.

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each arm: the jobs it needs, and those that are done."""
        return [
            {"arm": name, "done": arm.done, "total": arm.total} for name, arm in self.by_arm.items()
        ]

    def lines(self) -> Iterator[str]:
        """Return jobs, failures, arms and device-hours."""
        return status_lines(self)


def write_progress(folder: Path, record: ProgressRecord) -> None:
    """Write the progress of a study."""
    write_text(folder / _FILE, record.model_dump_json(indent=1) + "\n", is_flushed=False)


def read_progress(folder: Path) -> ProgressRecord | None:
    """Read the progress of a study; None if it was never run."""
    path = folder / _FILE
    if not path.is_file():
        return None
    try:
        return ProgressRecord.model_validate(read_json(path))
    except (ValidationError, DataError):
        raise DataError(
            f"{path}: damaged, or of another version; delete it, no results are lost"
        ) from None


def progress_by_arm(
    jobs_by_arm: Mapping[str, Collection[str]], is_done: Callable[[str], bool]
) -> dict[str, ArmProgress]:
    """Return, by arm, how many of the jobs that it needs are done."""
    return {
        arm: ArmProgress(done=sum(map(is_done, jobs)), total=len(jobs))
        for arm, jobs in jobs_by_arm.items()
    }


def status_lines(status: StudyStatus, *, now: datetime | None = None) -> Iterator[str]:
    """Yield the lines that describe a study's status."""
    now = now or datetime.now(UTC)
    yield f"{status.study}: {_phase(status)}"
    for note in status.notes:
        yield f"  {note}"
    if status.counts is None:
        yield "  building text and tasks; jobs are counted after that"
        return
    yield f"  {_counts(status.counts)}"
    if status.running:
        yield "running"
        width = max(len(job.label) for job in status.running)
        for job in status.running:
            steps = f"{job.done:,}/{job.total:,}" if job.total else "starting"
            seconds = max((now - datetime.fromisoformat(job.started)).total_seconds(), 0.0)
            line = f"  {job.label:{width}}  {steps:>13}  {clock(seconds):>8}"
            yield "  ".join(filter(None, (line, job.text, job.place)))
    if status.failures:
        yield "failed"
        for failure in status.failures:
            yield f"  {failure.label}: {failure.error}{tried(failure.tries)}"
            yield f"    job {failure.id[:12]}" + (f", log {failure.log}" if failure.log else "")
    yield "arms"
    yield from _arms(status)
    yield f"device-hours  {_time(status)}"


def short_line(status: StudyStatus) -> str:
    """Return a study's job counts in one line."""
    counts = "preparing" if status.counts is None else _counts(status.counts)
    return f"{status.study}: {counts}"


def _phase(status: StudyStatus) -> str:
    endings = {"finished": "", "unfinished": "; not running"}
    return status.phase + endings.get(status.phase, f" ({status.runner})")


def _counts(counts: JobCounts) -> str:
    total = counts.done + counts.running + counts.waiting + counts.failed + counts.blocked
    parts = [f"{counts.done:,} done", f"{counts.running:,} running", f"{counts.waiting:,} waiting"]
    if counts.failed:
        parts.append(f"{counts.failed:,} failed")
    if counts.blocked:
        parts.append(f"{counts.blocked:,} need a failed job")
    return f"{', '.join(parts)}, of {total:,} jobs"


def _arms(status: StudyStatus) -> Iterator[str]:
    if not status.by_arm:
        return
    width = max(len(name) for name in status.by_arm)
    # Unfinished arms first.
    order = sorted(status.by_arm.items(), key=lambda entry: entry[1].done >= entry[1].total)
    for name, arm in order[:_MOST_ARMS]:
        filled = _BAR * arm.done // arm.total if arm.total else _BAR
        bar = "#" * filled + "." * (_BAR - filled)
        yield f"  {name:{width}}  {bar}  {arm.done:,}/{arm.total:,}"
    if len(order) > _MOST_ARMS:
        rest = order[_MOST_ARMS:]
        finished = sum(arm.done >= arm.total for _, arm in rest)
        yield f"  and {len(rest):,} more, {finished:,} of them finished"


def _time(status: StudyStatus) -> str:
    spent = status.device_seconds_spent
    text = "not known" if spent is None else hours(spent)
    text += " spent" + (" in this run" if status.phase == "running" else "")
    left = status.device_seconds_left
    text += ", unknown left" if left is None else f", about {hours(left)} left"
    if status.eta is None:
        return text
    end = datetime.fromisoformat(status.eta).astimezone()
    return f"{text}; end expected at {end:%Y-%m-%d %H:%M}"
