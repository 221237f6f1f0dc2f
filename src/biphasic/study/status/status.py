"""Status of a study, from its runner while it runs, else from the store; and as text."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biphasic.amounts import rough_duration
from biphasic.errors import DataError
from biphasic.locks import LOCK, Owner, find_owner
from biphasic.study import RESOLVED
from biphasic.study.status.record import StudyProgress, StudyStatus, read_progress

if TYPE_CHECKING:
    from biphasic.study.settings.study import StudyConfig

_QUIET_SECONDS = 60.0  # The status reports a missing heartbeat after this time.


def study_status(folder: Path, config: StudyConfig | None = None) -> StudyStatus:
    """Return the status of a study; `config` is used if it was never run."""
    owner = find_owner(folder / LOCK)
    notes: list[str] = []
    if owner is not None:
        silence = time.time() - owner.heartbeat
        if owner.seems_alive:
            return _running(folder, owner, silence)
        notes.append(
            f"{owner} exited unexpectedly, or cannot reach the store: no heartbeat for "
            f"{rough_duration(silence)}"
        )
    # Slow imports; watching a running study needs no plan.
    from biphasic.study.status.at_rest import status_at_rest  # noqa: PLC0415
    from biphasic.study.study import Study  # noqa: PLC0415

    if (folder / RESOLVED).is_file():
        study = Study.saved(folder)
    elif config is not None:
        study = Study(config, folder.parent)
    else:
        raise DataError(f"{folder}: no study was run here; give its study file")
    if config is not None and study.config != config:
        notes.append(
            "the study file has changed since the last run; this status is of the last run"
        )
    return status_at_rest(study, notes)


def _running(folder: Path, owner: Owner, silence: float) -> StudyStatus:
    notes = [f"no heartbeat for {silence:.0f} s"] if silence > _QUIET_SECONDS else []
    progress = read_progress(folder)
    runner = progress and (progress.runner.host, progress.runner.pid)
    common: dict[str, Any] = {"folder": folder, "runner": str(owner)}
    if progress is None or (owner.host and runner != (owner.host, owner.pid)):
        return StudyStatus(study=folder.name, phase="preparing", notes=tuple(notes), **common)
    if progress.is_over:
        notes.append("all jobs have ended; the report is being written")
    elif progress.seconds_left is not None:
        end = datetime.fromisoformat(progress.updated) + timedelta(seconds=progress.seconds_left)
        common["eta"] = end.astimezone(UTC).isoformat(timespec="seconds")
    common["counts"] = progress.counts
    common |= {name: getattr(progress, name) for name in StudyProgress.model_fields}
    return StudyStatus(phase="running", notes=tuple(notes), **common)
