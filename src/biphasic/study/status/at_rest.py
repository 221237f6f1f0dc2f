"""Status of a study that is not running, from its plan and the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

from biphasic.analysis.report import report_damage
from biphasic.errors import CheckpointError
from biphasic.execution.graph import with_dependents
from biphasic.files import verify_folder
from biphasic.study.paths import STORE
from biphasic.study.plan.finished import Finished
from biphasic.study.plan.plan import Plan
from biphasic.study.plan.preview import preview_study
from biphasic.study.spec.study import StudyConfig
from biphasic.study.status.device_time import device_time
from biphasic.study.status.record import (
    FailedJob,
    JobCounts,
    StudyStatus,
    progress_by_arm,
    read_progress,
)

_MOST_DAMAGED = 5


def status_at_rest(config: StudyConfig, folder: Path, notes: Sequence[str]) -> StudyStatus:
    """Return the status of a study by comparing its plan with the store.

    Args:
        config: The study.
        folder: Its folder, next to the store.
        notes: Notes to add.

    Raises:
        DataError: User data are missing, or a record is damaged.
    """
    store = folder.parent / STORE
    preview = preview_study(config, store)
    plan = preview.plan
    finished = Finished.of(store)
    done = finished.jobs(plan)
    last = read_progress(folder)
    failures = tuple(job for job in (last.failures if last else ()) if _is_left(job, plan, done))
    counts = _counts(plan, done, [job.id for job in failures])
    notes = [*notes, *_damage(done, plan, folder, store)]
    spent, left = device_time(plan, store, finished, vocab_size=preview.fingerprint.vocab_size)
    return StudyStatus(
        study=config.name,
        folder=folder,
        phase="unfinished" if counts.waiting or counts.failed or counts.blocked else "finished",
        runner=None,
        counts=counts,
        failures=failures,
        by_arm=progress_by_arm(plan.jobs_by_arm(), done.__contains__),
        device_seconds_spent=spent,
        device_seconds_left=left,
        notes=(*notes, *(f"assumed: {sentence}" for sentence in preview.assumed)),
    )


def _damage(done: Set[str], plan: Plan, folder: Path, store: Path) -> Iterator[str]:
    """Yield missing files and files of wrong size."""
    for problem in report_damage(folder, hashes=False):
        yield f"{problem}; run the study again to rewrite its report"
    results = {name for group in plan.groups if group.id in done for name in group.run_ids()}
    names = {"states": done - {group.id for group in plan.groups}, "finetunes": results}
    places = [store / kind / name for kind, of_kind in names.items() for name in sorted(of_kind)]
    damaged = [problem for place in places if (problem := _look(place))]
    yield from damaged[:_MOST_DAMAGED]
    if len(damaged) > _MOST_DAMAGED:
        yield f"{len(damaged) - _MOST_DAMAGED:,} more are damaged; 'study verify' lists them"


def _look(place: Path) -> str:
    try:
        verify_folder(place, remedy=f"delete the folder {place} and run again", hashes=False)
    except CheckpointError as error:
        return str(error)
    return ""


def _is_left(failure: FailedJob, plan: Plan, done: Set[str]) -> bool:
    """Return whether a failed job is still planned and not done since."""
    is_planned = any(segment.id == failure.id for segment in plan.segments) or any(
        group.id == failure.id for group in plan.groups
    )
    return is_planned and failure.id not in done


def _counts(plan: Plan, done: Set[str], failed: list[str]) -> JobCounts:
    waiting = _waiting(plan)
    blocked = {job for one in failed for job in with_dependents(one, waiting)} - {*done, *failed}
    total = len(waiting)
    return JobCounts(
        done=len(done),
        running=0,
        waiting=total - len(done) - len(failed) - len(blocked),
        failed=len(failed),
        blocked=len(blocked),
    )


def _waiting(plan: Plan) -> dict[str, list[str]]:
    """Return, by job, the jobs that need it."""
    waiting: dict[str, list[str]] = {segment.id: [] for segment in plan.segments}
    waiting.update({group.id: [] for group in plan.groups})
    for job, needed in _needed(plan).items():
        if needed in waiting:
            waiting[needed].append(job)
    return waiting


def _needed(plan: Plan) -> Mapping[str, str | None]:
    states = {segment.id: segment.parent for segment in plan.segments}
    return {**states, **{group.id: group.state for group in plan.groups}}
