"""Asking a running study to stop, or to try again what it has set aside."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from biphasic.config import nearest
from biphasic.errors import ConfigError, StudyError
from biphasic.execution.requests import Request, has_request, write_request
from biphasic.locks import LEASE_SECONDS, LOCK, Owner, find_owner
from biphasic.study.status.record import FailedJob, read_progress

_POLL_SECONDS = 0.5
_AGAIN_SECONDS = 10.0
"""A runner that has just begun drops what was asked of the one before; so we ask again."""

Say = Callable[[str], None]


def cancel_study(folder: Path, *, say: Say) -> bool:
    """Stop a study, wherever it runs, and wait until it has ended.

    Jobs that run save what they have, if they can, and go on from there next time.

    Args:
        folder: Of the study.
        say: Told whom we wait for, and how it ended.

    Returns:
        Whether it was running.
    """
    runner = find_owner(folder / LOCK)
    if runner is None:
        say(f"{folder.name} is not running")
        return False
    say(f"asked {runner} to stop; its jobs save what they have")
    if _wait_for_end(folder, runner):
        say(f"{folder.name} has stopped; 'biphasic study run' goes on")
    else:
        say(f"{runner} gives no heartbeat, so nothing runs; 'biphasic study run' goes on")
    return True


def retry_jobs(folder: Path, runner: Owner, jobs: Sequence[str]) -> tuple[FailedJob, ...]:
    """Ask the runner of a study to try jobs again that it has set aside.

    Args:
        folder: Of the study.
        runner: Who runs it.
        jobs: Identities, beginnings of them, or labels; all that were set aside when empty.

    Returns:
        The jobs.

    Raises:
        StudyError: Nothing was set aside, or there is no such job among what was.
    """
    progress = read_progress(folder)
    failures = () if progress is None else progress.failures
    if not failures:
        raise StudyError(f"{folder.name}: {runner} has set no job aside; nothing to try again")
    chosen = tuple(dict.fromkeys(_find(job, failures) for job in jobs)) or failures
    write_request(folder, Request(kind="retry", jobs=tuple(each.id for each in chosen)))
    return chosen


def _find(text: str, failures: Sequence[FailedJob]) -> FailedJob:
    found = [each for each in failures if each.label == text or (text and each.id.startswith(text))]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"'{text}' is the beginning of {len(found)} jobs; give more of it")
    labels = [each.label for each in failures]
    raise ConfigError(f"'{text}' is no job that was set aside{nearest(text, labels)}")


def _wait_for_end(folder: Path, runner: Owner) -> bool:
    """Ask until a runner has released its lock; return False if its lease expires first."""
    asked, heartbeat, heard = -math.inf, runner.heartbeat, time.monotonic()
    while (now := find_owner(folder / LOCK)) is not None and now.token == runner.token:
        if now.heartbeat != heartbeat:
            heartbeat, heard = now.heartbeat, time.monotonic()
        if time.monotonic() - heard >= LEASE_SECONDS:
            return False
        if time.monotonic() - asked >= _AGAIN_SECONDS and not has_request(folder, "cancel"):
            write_request(folder, Request(kind="cancel"))
            asked = time.monotonic()
        time.sleep(_POLL_SECONDS)
    return True
