"""Status of a study, from its runner while it runs, else from the store."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from biphasic.errors import StudyError
from biphasic.locks import LEASE_SECONDS, LOCK, Owner, find_owner
from biphasic.study.paths import RESOLVED
from biphasic.study.status.record import StudyStatus, read_progress

if TYPE_CHECKING:
    from biphasic.study.spec.study import StudyConfig

_QUIET_SECONDS = 60.0
"""The status reports a missing heartbeat after this time."""


def study_status(folder: Path, config: StudyConfig | None = None) -> StudyStatus:
    """Return the status of a study; `config` is used if it was never run.

    Raises:
        StudyError: It was never run and no settings are given, or its records cannot be read.
        DataError: User data are missing.
    """
    owner = find_owner(folder / LOCK)
    notes: list[str] = []
    if owner is not None:
        silence = time.time() - owner.heartbeat
        if owner.is_here or silence < LEASE_SECONDS:
            return _running(folder, owner, silence)
        notes.append(
            f"{owner} exited unexpectedly, or cannot reach the store: no heartbeat for "
            f"{silence / 60:.0f} minutes"
        )
    # These import torch; watching a running study needs no plan.
    from biphasic.study.spec.load import load_resolved  # noqa: PLC0415
    from biphasic.study.status.at_rest import status_at_rest  # noqa: PLC0415

    saved = load_resolved(folder) if (folder / RESOLVED).is_file() else config
    if saved is None:
        raise StudyError(f"{folder}: no study was run here; give its study file")
    if config is not None and saved != config:
        notes.append(
            "the study file has changed since the last run; this status is of the last run"
        )
    return status_at_rest(saved, folder, notes)


def _running(folder: Path, owner: Owner, silence: float) -> StudyStatus:
    notes: list[str] = []
    if silence > _QUIET_SECONDS:
        notes.append(f"no heartbeat for {silence:.0f} s")
    progress = read_progress(folder)
    runner = progress and (progress.runner.host, progress.runner.pid)
    if progress is None or (owner.host and runner != (owner.host, owner.pid)):
        return StudyStatus(
            study=folder.name,
            folder=folder,
            phase="preparing",
            runner=str(owner),
            counts=None,
            notes=tuple(notes),
        )
    eta = None
    if progress.is_over:
        notes.append("all jobs have ended; the report is being written")
    elif progress.seconds_left is not None:
        end = datetime.fromisoformat(progress.updated) + timedelta(seconds=progress.seconds_left)
        eta = end.astimezone(UTC).isoformat(timespec="seconds")
    return StudyStatus(
        study=folder.name,
        folder=folder,
        phase="running",
        runner=str(owner),
        counts=progress.counts,
        running=progress.running,
        failures=progress.failures,
        by_arm=progress.by_arm,
        device_seconds_spent=progress.device_seconds_spent,
        device_seconds_left=progress.device_seconds_left,
        eta=eta,
        notes=tuple(notes),
    )
