"""Lookup of studies on disk, by file, folder or name, and their status."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biphasic.amounts import rough_duration
from biphasic.config import nearest
from biphasic.errors import DataError
from biphasic.locks import LOCK, Owner, find_owner
from biphasic.records import STUDY
from biphasic.study import RESOLVED
from biphasic.study.status import StudyProgress, StudyStatus, read_progress

if TYPE_CHECKING:
    from biphasic.study.settings.study import StudyConfig

_QUIET_SECONDS = 60.0  # The status reports a missing heartbeat after this time.
_YAML = frozenset({".yaml", ".yml"})


def study_folders(root: Path) -> list[Path]:
    """Return the folders of a root with studies."""
    return [folder for folder in sorted(root.iterdir()) if _holds_study(folder)]


def _holds_study(folder: Path) -> bool:
    return (folder / RESOLVED).is_file() or (folder / STUDY).is_file()


def find_study(target: Path | str | None, root: Path) -> tuple[Path, StudyConfig | None]:
    """Return the folder of a study, and its settings if `target` is a study file."""
    known = [folder.name for folder in study_folders(root)] if root.is_dir() else []
    if target is None:
        if len(known) != 1:
            problem = f"several studies, name one of {', '.join(known)}" if known else "no studies"
            raise DataError(f"{root}: {problem}")
        return root.resolve() / known[0], None
    path = Path(target)
    if path.suffix in _YAML:
        # Slow, and not needed for a name.
        from biphasic.study.settings.load import load_study  # noqa: PLC0415

        config = load_study(path)
        return root.resolve() / config.name, config
    for folder in (path, root / path):
        if _holds_study(folder):
            return folder.resolve(), None
    raise DataError(
        f"{target}: not a study file, nor the folder of a study, nor the name of one in {root}"
        f"{nearest(str(target), known)}"
    )


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
    from biphasic.study.at_rest import status_at_rest  # noqa: PLC0415
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
