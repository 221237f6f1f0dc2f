"""Status of a study that is not running, from its plan and the store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set

from biphasic.analysis.report import report_damage
from biphasic.errors import CheckpointError
from biphasic.execution.display import Speeds
from biphasic.execution.job import dependents, with_dependents
from biphasic.store import RESULT, STATE, ArtifactType, Store
from biphasic.study.plan.cost import job_costs
from biphasic.study.plan.finished import Finished
from biphasic.study.resolve import resolve
from biphasic.study.status import JobCounts, StudyStatus, progress_by_arm, read_progress
from biphasic.study.study import Study

_MOST_DAMAGED = 5


def status_at_rest(study: Study, notes: Sequence[str]) -> StudyStatus:
    """Return the status of a study by comparing its plan with the store; add `notes`."""
    plan = resolve(study, missing="placeholder").plan
    finished = Finished.of(plan)
    done = finished.jobs()
    last = read_progress(study.folder)
    waiting = dependents(plan.parents | {group.id: group.state for group in plan.groups})
    left_over = waiting.keys() - done
    failures = tuple(job for job in (last.failures if last else ()) if job.id in left_over)
    counts = _counts(waiting, done, [job.id for job in failures])
    notes = [*notes, *_damage(done, finished)]
    speeds, left = _times(finished)
    return StudyStatus(
        study=study.config.name,
        folder=study.folder,
        phase="unfinished" if counts.waiting or counts.failed or counts.blocked else "finished",
        runner=None,
        counts=counts,
        failures=failures,
        by_arm=progress_by_arm(plan.jobs_by_arm(), done.__contains__),
        device_seconds_spent=speeds.seconds,
        device_seconds_left=left,
        notes=(*notes, *(f"assumed: {sentence}" for sentence in plan.assumed)),
    )


def _damage(done: Set[str], finished: Finished) -> Iterator[str]:
    """Yield missing files and files of wrong size."""
    plan = finished.plan
    yield from report_damage(plan.study.folder, hashes=False)
    results = {name for group in plan.groups if group.id in done for name in group.run_ids()}
    store = Store(plan.store)
    names = [(STATE, name) for name in sorted(done & finished.states)]
    names += [(RESULT, name) for name in sorted(results)]
    damaged = [problem for name in names if (problem := _look(store, *name))]
    yield from damaged[:_MOST_DAMAGED]
    if len(damaged) > _MOST_DAMAGED:
        yield f"{len(damaged) - _MOST_DAMAGED:,} more are damaged; 'study verify' lists them"


def _look(store: Store, kind: ArtifactType, name: str) -> str:
    try:
        store.get(kind, name).verify(hashes=False)
    except CheckpointError as error:
        return str(error)
    return ""


def _counts(waiting: Mapping[str, list[str]], done: Set[str], failed: list[str]) -> JobCounts:
    blocked = {job for one in failed for job in with_dependents(one, waiting)} - {*done, *failed}
    return JobCounts(
        done=len(done),
        running=0,
        waiting=len(waiting) - len(done) - len(failed) - len(blocked),
        failed=len(failed),
        blocked=len(blocked),
    )


def _times(finished: Finished) -> tuple[Speeds, float | None]:
    """Return the speeds of finished jobs, and the device-seconds left; None if not known."""
    plan, costs = finished.plan, job_costs(finished.plan)
    store, left = Store(plan.store), defaultdict[str, float](float)
    # If operations are unknown, steps and trainings: those of one study cost about the same.
    kinds = {"train": plan.segments, "finetune": plan.groups}
    speeds = Speeds(k for k, jobs in kinds.items() if not all(costs[j.id].flops for j in jobs))
    missing = {segment.id for segment in finished.missing_segments()}
    for segment in plan.segments:
        amount = float(costs[segment.id].flops or segment.steps)
        if segment.id in finished.states:
            state = store.state(segment.id)
            speeds.add("train", amount, state.seconds * int(state.compute.get("processes", 1)))
        elif segment.id in missing:
            left["train"] += amount
    for group in plan.groups:
        per_training = float(costs[group.id].flops or group.most) / group.most
        for runs in zip(*group.runs.values(), strict=True):  # of each scored task
            names = [run.id for run in runs]
            if finished.results.issuperset(names):
                # Each result includes the shared training; scoring is short in comparison.
                seconds = max(store.result(name).seconds for name in names)
                speeds.add("finetune", per_training, seconds)
            else:
                left["finetune"] += per_training
    known = {kind: speeds.of(kind) for kind in left}
    if None in known.values():
        return speeds, None
    return speeds, sum(amount * (known[kind] or 0.0) for kind, amount in left.items())
