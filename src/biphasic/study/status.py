"""A running study: its progress for other processes (`progress.json`), and requests to it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from biphasic.config import Config, nearest
from biphasic.errors import ConfigError, DataError
from biphasic.execution.job import Request, write_request
from biphasic.files import read_json, write_text
from biphasic.locks import LEASE_SECONDS, LOCK, Owner, Say, find_owner
from biphasic.shown import Shown
from biphasic.study import lines_of

_MOST_ARMS = 40

_FILE = "progress.json"


class RunningJob(Config):
    """A job in progress."""

    id: str
    label: str
    kind: str
    done: int = 0  # Steps so far.
    total: int | None = None  # Total steps; None before the first of them.
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


_POLL_SECONDS = 0.5
# A new runner drops requests to the previous one, so the request is repeated.
_AGAIN_SECONDS = 10.0


def cancel_study(folder: Path, *, say: Say) -> bool:
    """Stop a study on any machine, and wait until it has stopped."""
    runner = find_owner(folder / LOCK)
    if runner is None:
        say(f"{folder.name} is not running")
        return False
    say(f"sent stop request to {runner}; running jobs save their progress")
    if _wait_for_end(folder, runner):
        say(f"{folder.name} has stopped; 'biphasic study run' resumes it")
    else:
        say(f"{runner} sends no heartbeat and is not running; 'biphasic study run' resumes it")
    return True


def retry_jobs(folder: Path, runner: Owner, jobs: Sequence[str]) -> tuple[FailedJob, ...]:
    """Ask the runner of a study to retry failed jobs; return these jobs."""
    progress = read_progress(folder)
    failures = () if progress is None else progress.failures
    if not failures:
        raise ConfigError(f"{folder.name}: {runner} has no failed jobs; nothing to retry")
    chosen = tuple(dict.fromkeys(_find(job, failures) for job in jobs)) or failures
    write_request(folder, Request(kind="retry", jobs=tuple(job.id for job in chosen)))
    return chosen


def _find(text: str, failures: Sequence[FailedJob]) -> FailedJob:
    matching = [job for job in failures if job.label == text or (text and job.id.startswith(text))]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise ConfigError(f"'{text}' matches {len(matching)} jobs; give a longer prefix")
    labels = [job.label for job in failures]
    raise ConfigError(f"'{text}' is not a failed job{nearest(text, labels)}")


def _wait_for_end(folder: Path, runner: Owner) -> bool:
    """Repeat the request until a runner releases its lock; return False if its lease expires."""
    asked, heartbeat, heard = -math.inf, runner.heartbeat, time.monotonic()
    while (now := find_owner(folder / LOCK)) is not None and now.token == runner.token:
        if now.heartbeat != heartbeat:
            heartbeat, heard = now.heartbeat, time.monotonic()
        if time.monotonic() - heard >= LEASE_SECONDS:
            return False
        if time.monotonic() - asked >= _AGAIN_SECONDS:
            write_request(folder, Request(kind="cancel"))
            asked = time.monotonic()
        time.sleep(_POLL_SECONDS)
    return True
