"""Run a study: its missing jobs, longest path first, then the report."""

from __future__ import annotations

import os
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Any, Self

from rich.console import Console

from biphasic.amounts import size
from biphasic.analysis.records import StudyRecords, load_records
from biphasic.analysis.scores.source import study_scores
from biphasic.analysis.tables.results import format_table
from biphasic.analysis.tables.text import score_rows
from biphasic.errors import StudyError
from biphasic.execution.display import RunningItem, StudyDisplay
from biphasic.execution.executor import ExecutorConfig, Work
from biphasic.execution.job import (
    Failure,
    Progress,
    WorkItem,
    dependents,
    read_requests,
    with_dependents,
)
from biphasic.execution.scheduler import RetryPolicy, Scheduler, WorkOutcome
from biphasic.locks import refuse_while_cleaning, this_process
from biphasic.model.compute.device import compute_device, parse_device
from biphasic.plugins import keep_files
from biphasic.progress import progress_bar, say_on
from biphasic.shown import Shown, inline, shown_path, table_lines
from biphasic.store import STATE, Store
from biphasic.study.inputs.corpus import DataPaths
from biphasic.study.pins import link_states
from biphasic.study.plan.cost import job_costs, state_bytes
from biphasic.study.plan.finetuning import FinetuneGroup
from biphasic.study.plan.finished import Finished
from biphasic.study.plan.plan import Plan, Segment
from biphasic.study.resolve import resolve
from biphasic.study.run.jobs import WORKER, load_job
from biphasic.study.run.record import refresh_record, write_study_report
from biphasic.study.run.register import could_register
from biphasic.study.status import (
    FailedJob,
    JobCounts,
    ProgressRecord,
    RunnerRecord,
    RunningJob,
    progress_by_arm,
    write_progress,
)
from biphasic.study.study import Study
from biphasic.training.state import KEPT_CHECKPOINTS

_WRITE_SECONDS = 2.0


class Monitor(StudyDisplay):
    """A display that also writes `progress.json`."""

    def __init__(
        self,
        items: Iterable[WorkItem],
        plan: Plan,
        *,
        num_slots: int,
        console: Console,
        executor: str = "local",
    ) -> None:
        """Prepare; `items` are the remaining jobs of the plan."""
        super().__init__(console, items, num_slots=num_slots)
        self._folder, self._jobs_by_arm = plan.study.folder, plan.jobs_by_arm()
        self._waiting = dependents({item.id: item.needs for item in self.items.values()})
        self._num_before = len(plan.segments) + len(plan.groups) - len(self.items)
        host, pid = this_process()
        self._runner = RunnerRecord(host=host, pid=pid, since=_text(), executor=executor)
        self._written = 0.0
        self._is_unseen = False

    def __enter__(self) -> Self:
        super().__enter__()
        self._write(is_over=False)
        return self

    def __exit__(self, *_: object) -> None:
        """Write the final progress record."""
        super().__exit__()
        self.running.clear()
        self._write(is_over=True)

    def tick(self) -> None:
        """Write `progress.json` if it is due."""
        if time.monotonic() - self._written >= _WRITE_SECONDS:
            self._write(is_over=False)

    def _write(self, *, is_over: bool) -> None:
        self._written = time.monotonic()
        try:
            write_progress(self._folder, self._record(is_over=is_over))
        except OSError as error:  # informational only: the study continues without it
            if not self._is_unseen:
                self.say(f"cannot write progress.json: {error.strerror}")
            self._is_unseen = True

    def _record(self, *, is_over: bool) -> ProgressRecord:
        blocked = {job for one in self.failed for job in with_dependents(one, self._waiting)}
        with self._lock:
            running = [(self.items[name], job) for name, job in self.running.items()]
        left = self.pace.seconds_left()
        done, failed = len(self.done), len(self.failed)
        return ProgressRecord(
            study=self._folder.name,
            runner=self._runner,
            updated=_text(),
            is_over=is_over,
            counts=JobCounts(
                done=self._num_before + done,
                running=len(running),
                waiting=len(self.items) - done - len(running) - failed - len(blocked),
                failed=failed,
                blocked=len(blocked),
            ),
            running=tuple(starmap(_running, running)),
            failures=tuple(map(_failed, self.failed.values())),
            by_arm=progress_by_arm(
                self._jobs_by_arm, lambda job: job in self.done or job not in self.items
            ),
            device_seconds_spent=self.pace.seconds_spent(),
            device_seconds_left=None if left is None else left[0],
            seconds_left=None if left is None else left[1],
        )


def _running(item: WorkItem, job: RunningItem) -> RunningJob:
    told = job.progress or Progress(0, 0, "")
    return RunningJob(
        id=item.id,
        label=item.label,
        kind=item.kind,
        done=told.done,
        total=told.total or None,
        text=told.text,
        place=told.place,
        started=_text(job.started),
    )


def _failed(failure: Failure) -> FailedJob:
    log = None if failure.log is None else str(failure.log)
    first = failure.error.partition("\n")[0]
    return FailedJob(id=failure.id, label=failure.label, error=first, tries=failure.tries, log=log)


def _text(time: datetime | None = None) -> str:
    """Return a time in UTC as text, by default the present."""
    return (time or datetime.now(UTC)).isoformat(timespec="seconds")


@dataclass(frozen=True, repr=False)
class StudyOutcome(Shown):
    """The outcome of `run_study`; `frame` has the scores of all arms."""

    folder: Path
    report: Path  # Path of `report.html`.
    num_executed: int  # Jobs run by this process.
    # One line per failed job, and per job that was skipped because it needs one.
    failures: tuple[str, ...]
    failed: tuple[Failure, ...] = ()
    is_stopped: bool = False  # Whether the study was cancelled.

    def records(self) -> StudyRecords:
        """Read the study's records."""
        return load_records(self.folder)

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each arm and task, as `analyze` does."""
        return score_rows(study_scores(self.records()))

    def lines(self) -> Iterator[str]:
        """Return the scores, the place of the report, and failures."""
        yield from table_lines(format_table(self.records()))
        yield f"report: {shown_path(self.report)}"
        yield from (f"failed: {failure}" for failure in self.failures)

    def drawing(self) -> str:
        """Return the report's figure of scores; empty without scores."""
        figure = self.report.parent / "figures" / "scores.svg"
        return inline(figure.read_text(encoding="utf-8")) if figure.is_file() else ""


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


def execute_study(
    study: Study,
    *,
    executor: ExecutorConfig,
    policy: RetryPolicy,
    console: Console,
    fresh: bool = False,
) -> StudyOutcome:
    """Run the missing jobs of a study, and write its report."""
    executor.check(study.folder, processes=study.config.compute.processes)
    keep_files(study.store, executor)
    with study.locked():
        refuse_while_cleaning(study.store)
        read_requests(study.folder)  # those to an earlier run are void
        study.save()
        resolved = resolve(study, missing="build", console=console, fresh=fresh)
        if could_register(resolved.plan):
            say_on(console)(
                "the questions of this study are not registered; to show that they came before "
                "the first score, stop and run 'biphasic study register' first"
            )
        refresh_record(resolved)
        resolved.compute_baselines(console=console)
        items = missing_work(resolved.plan, resolved.paths)
        outcome = WorkOutcome(0, (), ())
        try:
            if items:
                outcome = _run(items, resolved.plan, executor, policy, console)
        finally:
            names = {point.name: point.state for point in resolved.plan.points}
            link_states(study.store, study.config.name, names, say=say_on(console))
        with progress_bar(console, "writing the report"):
            report = write_study_report(resolved)
    not_tried = (f"{item.label}: skipped: a job that it needs failed" for item in outcome.blocked)
    return StudyOutcome(
        study.folder,
        report,
        num_executed=outcome.num_executed,
        failures=(*map(str, outcome.failures), *not_tried),
        failed=outcome.failures,
        is_stopped=outcome.is_stopped,
    )


def default_workers(num_threads: int = 1, *, device: str | None = None) -> int:
    """Return the default number of parallel jobs: one on a GPU, else one per core."""
    is_gpu = (parse_device(device) or compute_device()).type == "cuda"
    return 1 if is_gpu else max((os.cpu_count() or 1) // num_threads, 1)


def _run(
    items: list[WorkItem],
    plan: Plan,
    executor: ExecutorConfig,
    policy: RetryPolicy,
    console: Console,
) -> WorkOutcome:
    study = plan.study
    monitor = Monitor(
        items, plan, num_slots=executor.num_slots, executor=executor.executor, console=console
    )
    work = Work(
        study.store,
        study.folder,
        load_job=load_job,
        worker=WORKER,
        processes=study.config.compute.processes,
        watch=monitor.progress,
        say=monitor.say,
    )
    with monitor, executor.start(work) as started:
        return Scheduler(
            items,
            started,
            policy=policy,
            watcher=monitor,
            read_requests=lambda: read_requests(study.folder),
        ).run()


def check_disk(study: Study, missing: Sequence[Segment], *, num_checkpoints: int = 0) -> None:
    """Check that the disk has space for the missing states, and for checkpoints of the largest."""
    sizes = [
        state_bytes(segment.arm.recipe, vocab_size=segment.arm.vocab_size, end=segment.end) or 0
        for segment in missing
    ]
    needed = sum(sizes) + num_checkpoints * max(sizes, default=0)
    free = shutil.disk_usage(study.store).free
    if needed > free:
        raise StudyError(
            f"{study.store}: the study's {len(sizes)} missing states need {size(needed)} "
            f"with checkpoints, but {size(free)} are free; free space ('biphasic study "
            "clean'), or choose another --root"
        )


def missing_work(plan: Plan, paths: DataPaths) -> list[WorkItem]:
    """Return the jobs without results in the store, training first, in the study's order."""
    finished, store = Finished.of(plan), Store(plan.store)
    keeps = plan.study.config.checkpoint_every > 0
    check_disk(
        plan.study,
        finished.missing_segments(),
        num_checkpoints=KEPT_CHECKPOINTS if keeps else 0,
    )
    # An arm repeats if it needs a job repeatedly.
    users: defaultdict[str, list[str]] = defaultdict(list)
    for arm, jobs in plan.jobs_by_arm().items():
        for job in jobs:
            users[job].append(arm)
    costs = job_costs(plan)
    trainings = [
        WorkItem(
            id=segment.id,
            label=segment.label,
            kind="train",
            needs=segment.parent,
            cost=float(costs[segment.id].flops or 0),
            num_slots=plan.study.config.compute.processes,
            arms=tuple(users[segment.id]),
            make=partial(segment.job, plan.study, paths),
            is_done=partial(store.has, STATE, segment.id),
        )
        for segment in finished.missing_segments()
    ]
    return trainings + [
        WorkItem(
            id=group.id,
            label=group.label,
            kind="finetune",
            needs=group.state,
            cost=_share_missing(group, finished) * (costs[group.id].flops or 0),
            arms=tuple(users[group.id]),
            make=partial(
                group.job,
                tokenizer=plan.encoders.get(group.state, paths.tokenizer),
                encoder=plan.encoders.get(group.state, store.folder(STATE, group.state)),
            ),
            is_done=lambda group=group: not group.missing_runs(),
        )
        for group in finished.missing_groups()
    ]


def _share_missing(group: FinetuneGroup, finished: Finished) -> float:
    """Return the share of a group's possible runs that are due and missing."""
    missing = sum(name not in finished.results for name in group.run_ids())
    return missing / (group.most * len(group.evaluations))
