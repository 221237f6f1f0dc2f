"""Requests to a running study: cancel it, or retry failed jobs."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biphasic.config import nearest
from biphasic.errors import ConfigError
from biphasic.execution.job import Request, write_request
from biphasic.locks import LEASE_SECONDS, LOCK, Owner, Say, find_owner
from biphasic.shown import Shown
from biphasic.study.status.record import FailedJob, read_progress

if TYPE_CHECKING:
    from biphasic.study.run.run import StudyOutcome

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


@dataclass(frozen=True, repr=False)
class Retried(Shown):
    """What `retry` returns.

    Attributes:
        requests: A line for each job that the study's runner was asked to retry.
        outcome: The outcome of the study, if it ran here.
    """

    requests: tuple[str, ...]
    outcome: StudyOutcome | None

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return the rows of the outcome."""
        return self.outcome.table() if self.outcome else [{"request": one} for one in self.requests]

    def lines(self) -> Iterator[str]:
        """Return the requests, or the outcome."""
        yield from self.requests
        if self.outcome is not None:
            yield from self.outcome.lines()
