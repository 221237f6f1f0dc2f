"""A study's status as text."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from biphasic.study.status.record import JobCounts, RunningJob, StudyStatus

_MOST_ARMS = 40
_BAR = 20


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
        yield from _running(status.running, now)
    if status.failures:
        yield "failed"
        for failure in status.failures:
            tried = f" (tried {failure.tries} times)" if failure.tries > 1 else ""
            yield f"  {failure.label}: {failure.error}{tried}"
            yield f"    job {failure.id[:12]}" + (f", log {failure.log}" if failure.log else "")
    yield "arms"
    yield from _arms(status)
    yield f"device-hours  {_time(status)}"


def short_line(status: StudyStatus) -> str:
    """Return a study's job counts in one line."""
    counts = "preparing" if status.counts is None else _counts(status.counts)
    return f"{status.study}: {counts}"


def _phase(status: StudyStatus) -> str:
    if status.phase in {"finished", "unfinished"}:
        ending = "" if status.phase == "finished" else "; not running"
        return f"{status.phase}{ending}"
    return f"{status.phase} ({status.runner})"


def _counts(counts: JobCounts) -> str:
    total = counts.done + counts.running + counts.waiting + counts.failed + counts.blocked
    parts = [f"{counts.done:,} done", f"{counts.running:,} running", f"{counts.waiting:,} waiting"]
    if counts.failed:
        parts.append(f"{counts.failed:,} failed")
    if counts.blocked:
        parts.append(f"{counts.blocked:,} need a failed job")
    return f"{', '.join(parts)}, of {total:,} jobs"


def _running(jobs: tuple[RunningJob, ...], now: datetime) -> Iterator[str]:
    width = max(len(job.label) for job in jobs)
    for job in jobs:
        steps = f"{job.done:,}/{job.total:,}" if job.total else "starting"
        for_seconds = (now - datetime.fromisoformat(job.started)).total_seconds()
        line = f"  {job.label:{width}}  {steps:>13}  {_duration(max(for_seconds, 0.0)):>8}"
        yield "  ".join(filter(None, (line, job.text, job.place)))


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
    text = "not known" if spent is None else _hours(spent)
    text += " spent" + (" in this run" if status.phase == "running" else "")
    left = status.device_seconds_left
    text += ", unknown left" if left is None else f", about {_hours(left)} left"
    return text if status.eta is None else f"{text}; end expected at {_clock(status.eta)}"


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:,.1f}" if hours >= 10 else f"{hours:.3g}"


def _duration(seconds: float) -> str:
    whole = int(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def _clock(text: str) -> str:
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M")
