"""`progress.json`: how far a running study is, for whoever looks from outside."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from biphasic.config import Config
from biphasic.errors import DataError, StudyError
from biphasic.files import read_json, write_text

FORMAT = "biphasic.progress/1"
_FILE = "progress.json"


class RunningJob(Config):
    """A job in progress."""

    id: str
    label: str
    kind: str
    done: int = 0
    """Steps so far."""
    total: int | None = None
    """Steps in all; None before the first report."""
    text: str = ""
    """A few words, such as the loss."""
    started: str
    """When it was given to the engine: ISO 8601, UTC."""


class FailedJob(Config):
    """A job that was set aside."""

    id: str
    label: str
    error: str
    """The first line of why."""
    tries: int
    log: str | None
    """Where more is said."""


class ArmProgress(Config):
    """Jobs that an arm needs; shared ones count for each arm."""

    done: int
    total: int


class JobCounts(Config):
    """All jobs of a study by what has become of them; they add up to all."""

    done: int
    running: int
    waiting: int
    failed: int
    """Set aside."""
    blocked: int
    """Need one that was set aside."""


class RunnerRecord(Config):
    """The process that runs a study."""

    host: str
    pid: int
    since: str
    """ISO 8601, UTC."""


class ProgressRecord(Config):
    """How far a study is."""

    format: Literal["biphasic.progress/1"] = FORMAT
    study: str
    runner: RunnerRecord
    updated: str
    """ISO 8601, UTC."""
    is_over: bool
    """Whether the runner has ended; jobs may still be missing."""
    counts: JobCounts
    running: tuple[RunningJob, ...]
    failures: tuple[FailedJob, ...]
    by_arm: dict[str, ArmProgress]
    device_seconds_spent: float
    """Slots times seconds, of jobs of this run."""
    device_seconds_left: float | None
    """As jobs of the same kind went so far; None before any has ended."""
    seconds_left: float | None
    """Until the end, if the slots stay busy; None where not known."""


class StudyStatus(Config):
    """How far a study is, for people and (`--json`) for programs."""

    format: Literal["biphasic.status/1"] = "biphasic.status/1"
    study: str
    """Its name."""
    folder: Path
    """Its folder."""
    phase: Literal["running", "preparing", "unfinished", "finished"]
    """What is going on; `preparing`: text and tasks are made, and nothing is counted yet."""
    runner: str | None
    """The process that runs it, since when."""
    counts: JobCounts | None
    """All its jobs; None while it is prepared."""
    running: tuple[RunningJob, ...] = ()
    failures: tuple[FailedJob, ...] = ()
    """Jobs that were set aside, by this run or the last one."""
    by_arm: dict[str, ArmProgress] = Field(default_factory=dict)
    device_seconds_spent: float | None = None
    """While it runs, of this run; else of all that the study uses, whoever made it."""
    device_seconds_left: float | None = None
    """As jobs of the same kind went so far; None where none has ended."""
    eta: str | None = None
    """When a running study will end, ISO 8601, UTC; None where nobody can tell."""
    notes: tuple[str, ...] = ()
    """What else should be known, a sentence each."""


def write_progress(folder: Path, record: ProgressRecord) -> None:
    """Write down how far a study is."""
    write_text(folder / _FILE, record.model_dump_json(indent=1) + "\n", is_flushed=False)


def read_progress(folder: Path) -> ProgressRecord | None:
    """Read how far a study is; None if it was never run.

    Raises:
        StudyError: The record is damaged or of another version.
    """
    path = folder / _FILE
    if not path.is_file():
        return None
    try:
        return ProgressRecord.model_validate(read_json(path))
    except (ValidationError, DataError):
        raise StudyError(
            f"{path}: damaged, or of another version; delete it, nothing is lost"
        ) from None


def progress_by_arm(
    jobs_by_arm: Mapping[str, Collection[str]], is_done: Callable[[str], bool]
) -> dict[str, ArmProgress]:
    """Return, by arm, how many of the jobs that it needs are done.

    Args:
        jobs_by_arm: Identities of the jobs that each arm needs.
        is_done: Tells of a job, by its identity, whether it is.
    """
    return {
        arm: ArmProgress(done=sum(map(is_done, jobs)), total=len(jobs))
        for arm, jobs in jobs_by_arm.items()
    }
