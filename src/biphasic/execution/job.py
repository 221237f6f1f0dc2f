"""Jobs, which a process can run given only the store, their graph, and requests to their runner."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from biphasic import errors
from biphasic.amounts import tried
from biphasic.config import Config
from biphasic.errors import BiphasicError, ConfigError, StoppedError, StudyError
from biphasic.files import write_text
from biphasic.locks import Lock

# Pattern of job and result names: hashes, with `data-`, `report-` or `-0-of-2`; never a path.
IDENTITY = "[0-9a-z][0-9a-z-]*"
_LONGEST_IDENTITY = 128
_REPORT_SECONDS = 0.2
_REQUESTS = "requests"  # folder of a study, with files that are written from any machine


@dataclass(frozen=True)
class Progress:
    """Progress of a job."""

    done: int
    total: int
    text: str  # a few words, such as the loss
    place: str = ""  # where it runs, if not on this machine
    note: str = ""  # a line to print once, such as a warning; never left out


Report = Callable[[Progress], None]
# Polled by a job; when True, the job saves its progress and raises `StoppedError`.
ShouldStop = Callable[[], bool]


def never() -> bool:
    """Never stop."""
    return False


def throttled(report: Report) -> Report:
    """Return a report that forwards notes, and of other calls at most five a second."""
    last = 0.0

    def forward(progress: Progress) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= _REPORT_SECONDS or progress.note:
            last = now
            report(progress)

    return forward


class JobFailedError(StudyError):
    """A job failed."""

    def __init__(
        self, message: str, *, is_final: bool = False, log: Path | None = None, divergence: str = ""
    ) -> None:
        # Some libraries raise errors of many lines; the log has all of them.
        super().__init__(message.partition("\n")[0])
        self.is_final = is_final  # a retry is expected to fail in the same way
        self.log = log
        self.divergence = divergence  # which value was not finite at which step; else empty


def described(error: Exception) -> dict[str, Any]:
    """Return an error as JSON, for another process; its kind is empty for a bug."""
    fields = {name: vars(error)[name] for name in ("owner", "divergence") if name in vars(error)}
    if isinstance(error, OSError):
        file = error.filename and str(error.filename)
        fields = {"number": error.errno, "reason": error.strerror, "file": file}
        return {"kind": OSError.__name__, "error": str(error), "fields": fields}
    if isinstance(error, BiphasicError):
        return {"kind": type(error).__name__, "error": str(error), "fields": fields}
    return {"kind": "", "error": f"{type(error).__name__}: {error}", "fields": {}}


def made_again(event: Mapping[str, Any]) -> BiphasicError | OSError | None:
    """Return the error that `described` described; None for a bug, or an error that is not ours."""
    if event["kind"] == OSError.__name__:
        number, reason, file = (event["fields"][name] for name in ("number", "reason", "file"))
        return OSError(event["error"]) if number is None else OSError(number, reason, file)
    kind = getattr(errors, event["kind"], None)
    if isinstance(kind, type) and issubclass(kind, BiphasicError):
        return kind(event["error"], **event["fields"])
    return None


@dataclass(frozen=True)
class Failure:
    """A failed job."""

    id: str
    label: str
    error: str  # error message
    tries: int
    log: Path | None
    divergence: str = ""  # which value was not finite at which step; empty for other failures

    def __str__(self) -> str:
        """Return a human-readable line."""
        # Some errors already name the log.
        log = f"; log: {self.log}" if self.log and str(self.log) not in self.error else ""
        return f"{self.label}: {self.error}{tried(self.tries)}{log}"


class RequeuedError(StudyError):
    """A job ended early through no fault of its own, and runs again at once."""


class ExecutorError(StudyError):
    """An executor cannot run any more jobs."""


class Job(Config):
    """A job that is saved in a store as JSON for other processes."""

    id: str
    label: str  # Name in progress displays.
    store: Path  # Content store.

    @property
    def num_slots(self) -> int:
        """Slots that it occupies."""
        return 1

    def check_needs(self) -> None:
        """Check that the states that it reads exist."""

    def run(self, report: Report, *, should_stop: ShouldStop = never) -> None:
        """Run it, unless it is done."""
        raise NotImplementedError


LoadJob = Callable[[Path, str], Job]  # loads a job from a store by its identity


def while_held(report: Report, held: Lock, *, should_stop: ShouldStop = never) -> Report:
    """Return a report that raises when another process took the job's lock, or on request."""

    def forward(progress: Progress) -> None:
        report(progress)
        # The file is read only when a heartbeat has seen another owner: reports are frequent.
        if held.is_lost:
            held.check()
        if should_stop():
            raise StoppedError("stopped; finished parts are kept")

    return forward


def save_job(job: Job) -> None:
    """Save a job's inputs; overwrites an earlier copy."""
    # Not flushed: planning again rewrites it.
    write_text(job_path(job.store, job.id), job.model_dump_json(), is_flushed=False)


def job_path(store: Path, identity: str) -> Path:
    """Return the path of a job."""
    if len(identity) > _LONGEST_IDENTITY or not re.fullmatch(IDENTITY, identity):
        raise ConfigError(
            f"'{identity}' is not a job identity (digits, lowercase letters and dashes)"
        )
    return store / "jobs" / f"{identity}.json"


@dataclass(frozen=True)
class WorkItem:
    """A remaining job; `make` creates the job itself when it starts."""

    id: str
    label: str
    kind: Literal["train", "finetune"]
    make: Callable[[], Job]
    is_done: Callable[[], bool]  # returns whether the store has its results
    # Item it depends on; None, or one that is not in the graph, for no dependency.
    needs: str | None = None
    cost: float = 0.0  # expected operations, in FLOPs; 0 if unknown
    num_slots: int = 1
    arms: tuple[str, ...] = ()  # names of the arms that need it


def dependents(needs: Mapping[str, str | None]) -> dict[str, list[str]]:
    """Return, by job, the jobs that need it; `needs` has the job that each needs."""
    waiting: dict[str, list[str]] = {job: [] for job in needs}
    for job, needed in needs.items():
        if needed in waiting:
            waiting[needed].append(job)
    return waiting


def longest_paths(items: Iterable[WorkItem]) -> dict[str, float]:
    """Return, by item, the cost of the longest path that starts with it; needs come before it."""
    items = list(items)
    paths: dict[str, float] = {}
    waiting = dependents({item.id: item.needs for item in items})
    # In reverse, the paths of those that need an item are known before its own.
    for item in reversed(items):
        after = max((paths[dependent] for dependent in waiting[item.id]), default=0.0)
        # At least 1 each: among jobs of unknown cost, longer chains come first.
        paths[item.id] = max(item.cost, 1.0) + after
    return paths


def with_dependents(identity: str, waiting: Mapping[str, list[str]]) -> list[str]:
    """Return all direct and indirect dependents of an item, in dependency order."""
    identities = list(waiting[identity])
    for dependent in identities:
        identities.extend(waiting[dependent])
    return identities


class Request(Config):
    """One request."""

    kind: Literal["cancel", "retry"]
    jobs: tuple[str, ...] = ()
    """Jobs to retry; all failed jobs when empty."""


def write_request(folder: Path, request: Request) -> None:
    """Write a request into a study's folder; its runner reads it within a few seconds."""
    # To cancel twice is to cancel once; each retry names other jobs.
    mark = "" if request.kind == "cancel" else f"-{uuid.uuid4().hex[:12]}"
    write_text(folder / _REQUESTS / f"{request.kind}{mark}.json", request.model_dump_json())


def read_requests(folder: Path) -> list[Request]:
    """Read and delete all pending requests; those that cannot be read or deleted are ignored."""
    requests: list[Request] = []
    for path in sorted((folder / _REQUESTS).glob("*.json")):
        try:
            request = Request.model_validate_json(path.read_text(encoding="utf-8"))
            path.unlink(missing_ok=True)
        # Of another version or, with its permissions, of another user. A network file system may
        # fail once; the runner reads again in a second.
        except (ValidationError, UnicodeDecodeError, OSError):
            continue
        requests.append(request)
    return requests
