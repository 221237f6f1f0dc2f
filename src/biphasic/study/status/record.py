"""`progress.json`: the progress of a running study, for other processes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from biphasic.config import Config
from biphasic.errors import DataError
from biphasic.files import read_json, write_text
from biphasic.shown import Shown
from biphasic.study.words import lines_of

_MOST_ARMS = 40

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
    # Estimated from finished jobs of the same kind, else of all; None if there are none.
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

    def lines(self) -> Sequence[str]:
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


def status_lines(status: StudyStatus, *, now: datetime | None = None) -> list[str]:
    """Return the lines that describe a study's status."""
    moment = now or datetime.now(UTC)

    def seconds(job: RunningJob) -> float:
        return max((moment - datetime.fromisoformat(job.started)).total_seconds(), 0.0)

    # Unfinished arms first.
    arms = sorted(status.by_arm.items(), key=lambda entry: entry[1].done >= entry[1].total)
    end = status.eta and f"{datetime.fromisoformat(status.eta).astimezone():%Y-%m-%d %H:%M}"
    return lines_of(
        "status",
        status=status,
        short=False,
        seconds=seconds,
        arms=arms,
        most=_MOST_ARMS,
        num_finished=sum(arm.done >= arm.total for _, arm in arms[_MOST_ARMS:]),
        end=end,
    )


def short_line(status: StudyStatus) -> str:
    """Return a study's job counts in one line."""
    return "".join(lines_of("status", status=status, short=True))
