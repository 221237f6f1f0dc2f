"""How far a study is: as its runner says while there is one, else as the store says."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Set
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from pydantic import Field

from biphasic.claim import CLAIM, STALE_SECONDS, Holder, find_holder
from biphasic.config import Config, nearest
from biphasic.errors import StudyError
from biphasic.files import complete_names
from biphasic.study.config import StudyConfig
from biphasic.study.device_time import device_time
from biphasic.study.needs import study_folders
from biphasic.study.outlook import look_ahead
from biphasic.study.plan import Plan
from biphasic.study.prepared import STORE
from biphasic.study.progress_record import (
    ArmProgress,
    FailedJob,
    JobCounts,
    ProgressRecord,
    RunningJob,
    read_progress,
)
from biphasic.study.study_file import RESOLVED, load_resolved, load_study
from biphasic.study.work import with_dependents

_QUIET_SECONDS = 60.0
"""A runner that says nothing for longer is told to be silent."""
_YAML = frozenset({".yaml", ".yml"})


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


def find_study(target: Path | str | None, root: Path) -> tuple[Path, StudyConfig | None]:
    """Return the folder of a study, and its settings if a study file was named.

    Args:
        target: Study file, study folder, or name of a study; None for the only one of the root.
        root: Folder of studies.

    Raises:
        ConfigError: The study file is wrong.
        StudyError: There is no such study, or none was named and there are several.
    """
    known = [folder.name for folder in study_folders(root)] if root.is_dir() else []
    if target is None:
        if len(known) != 1:
            told = f"name one of {', '.join(known)}" if known else "none was run there"
            raise StudyError(f"{root}: which study? {told}")
        return root.resolve() / known[0], None
    path = Path(target)
    if path.suffix in _YAML:
        config = load_study(path)
        return root.resolve() / config.name, config
    for folder in (path, root / path):
        if (folder / RESOLVED).is_file():
            return folder.resolve(), None
    raise StudyError(
        f"{target}: neither a study file, nor the folder or name of a study that was run"
        f"{nearest(str(target), known)}"
    )


def study_status(folder: Path, config: StudyConfig | None = None) -> StudyStatus:
    """Return how far a study is.

    Args:
        folder: Of the study.
        config: Its settings, if it may never have been run.

    Raises:
        StudyError: It was never run and no settings are given, or its records cannot be read.
        DataError: Data that only their owner can bring are missing.
    """
    holder = find_holder(folder / CLAIM)
    notes: list[str] = []
    if holder is not None:
        silence = time.time() - holder.changed / 1e9
        if holder.is_alive or silence < STALE_SECONDS:
            return _running(folder, holder, silence)
        notes.append(
            f"{holder} ended without a word, or cannot reach the store: no sign of life for "
            f"{silence / 60:.0f} minutes"
        )
    saved = load_resolved(folder) if (folder / RESOLVED).is_file() else config
    if saved is None:
        raise StudyError(f"{folder}: no study was run here; name its study file")
    if config is not None and saved != config:
        notes.append("the study file is not what was run last; this is of what was run")
    return _at_rest(saved, folder, notes)


def _running(folder: Path, holder: Holder, silence: float) -> StudyStatus:
    notes: list[str] = []
    if not holder.is_alive and silence > _QUIET_SECONDS:
        notes.append(f"no sign of life for {silence:.0f} s")
    progress = read_progress(folder)
    if progress is None or not _is_of(progress, holder):
        return StudyStatus(
            study=folder.name,
            folder=folder,
            phase="preparing",
            runner=str(holder),
            counts=None,
            notes=tuple(notes),
        )
    if progress.is_over:
        notes.append("all jobs have ended; the report is being written")
    return StudyStatus(
        study=folder.name,
        folder=folder,
        phase="running",
        runner=str(holder),
        counts=progress.counts,
        running=progress.running,
        failures=progress.failures,
        by_arm=progress.by_arm,
        device_seconds_spent=progress.device_seconds_spent,
        device_seconds_left=progress.device_seconds_left,
        eta=None if progress.is_over else _eta(progress),
        notes=tuple(notes),
    )


def _is_of(progress: ProgressRecord, holder: Holder) -> bool:
    """Tell whether a record was written by the process that runs the study now."""
    process, runner = holder.process, progress.runner
    return process is None or (runner.host, runner.pid) == (process.host, process.pid)


def _eta(progress: ProgressRecord) -> str | None:
    if progress.seconds_left is None:
        return None
    end = datetime.fromisoformat(progress.updated) + timedelta(seconds=progress.seconds_left)
    return end.astimezone(UTC).isoformat(timespec="seconds")


def _at_rest(config: StudyConfig, folder: Path, notes: list[str]) -> StudyStatus:
    store = folder.parent / STORE
    outlook = look_ahead(config, store)
    plan = outlook.plan
    done = _done_jobs(plan, store)
    last = read_progress(folder)
    failures = tuple(each for each in (last.failures if last else ()) if _is_left(each, plan, done))
    counts = _counts(plan, done, [each.id for each in failures])
    spent, left = device_time(plan, store, vocab_size=outlook.ground.vocab_size)
    return StudyStatus(
        study=config.name,
        folder=folder,
        phase="unfinished" if counts.waiting or counts.failed or counts.blocked else "finished",
        runner=None,
        counts=counts,
        failures=failures,
        by_arm=_by_arm(plan, done),
        device_seconds_spent=spent,
        device_seconds_left=left,
        notes=(*notes, *(f"assumed: {sentence}" for sentence in outlook.assumed)),
    )


def _done_jobs(plan: Plan, store: Path) -> set[str]:
    states, results = complete_names(store / "states"), complete_names(store / "finetunes")
    done = {segment.id for segment in plan.segments if segment.id in states}
    done.update(group.id for group in plan.groups if results.issuperset(group.run_ids()))
    return done


def _is_left(failure: FailedJob, plan: Plan, done: Set[str]) -> bool:
    """Tell whether what failed is still planned, and nobody has done it since."""
    is_planned = any(segment.id == failure.id for segment in plan.segments) or any(
        group.id == failure.id for group in plan.groups
    )
    return is_planned and failure.id not in done


def _counts(plan: Plan, done: Set[str], failed: list[str]) -> JobCounts:
    waiting = _waiting(plan)
    blocked = {each for one in failed for each in with_dependents(one, waiting)} - {*done, *failed}
    total = len(waiting)
    return JobCounts(
        done=len(done),
        running=0,
        waiting=total - len(done) - len(failed) - len(blocked),
        failed=len(failed),
        blocked=len(blocked),
    )


def _waiting(plan: Plan) -> dict[str, list[str]]:
    """Return, by job, those that need it."""
    waiting: dict[str, list[str]] = {segment.id: [] for segment in plan.segments}
    waiting.update({group.id: [] for group in plan.groups})
    for job, needed in _needed(plan).items():
        if needed in waiting:
            waiting[needed].append(job)
    return waiting


def _needed(plan: Plan) -> Mapping[str, str | None]:
    states = {segment.id: segment.parent for segment in plan.segments}
    return {**states, **{group.id: group.state for group in plan.groups}}


def _by_arm(plan: Plan, done: Set[str]) -> dict[str, ArmProgress]:
    """Return, by arm, the jobs that it needs; shared ones count for each."""
    parents = {segment.id: segment.parent for segment in plan.segments}
    groups: dict[str, list[str]] = {}
    for group in plan.groups:
        groups.setdefault(group.state, []).append(group.id)
    jobs: dict[str, list[str]] = {}
    for arm in plan.arms:
        own = jobs.setdefault(arm.config.name, [])
        state: str | None = arm.state
        while state in parents:
            own.append(state)
            state = parents[state]
    for point in plan.points:
        jobs[point.arm.name].extend(groups.get(point.state, ()))
    counted = {name: Counter(job in done for job in own) for name, own in jobs.items()}
    return {
        name: ArmProgress(done=count[True], total=count.total()) for name, count in counted.items()
    }
