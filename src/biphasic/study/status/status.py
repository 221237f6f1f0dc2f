"""Status of a study, from its runner while it runs, else from the store; and as text."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biphasic.amounts import clock, hours, rough_duration, tried
from biphasic.errors import DataError
from biphasic.locks import LOCK, Owner, find_owner
from biphasic.study import RESOLVED
from biphasic.study.status.record import JobCounts, StudyProgress, StudyStatus, read_progress

if TYPE_CHECKING:
    from biphasic.study.spec.study import StudyConfig

_QUIET_SECONDS = 60.0  # The status reports a missing heartbeat after this time.
_MOST_ARMS = 40
_BAR = 20


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
