"""Run a study: its missing jobs, longest path first, then the report."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from biphasic.analysis.records import StudyRecords, load_study
from biphasic.analysis.scores.source import study_scores
from biphasic.analysis.tables.results import format_table
from biphasic.analysis.tables.text import score_rows
from biphasic.execution.cluster.site import Site, check_fits
from biphasic.execution.executor import Executor, LocalExecutor
from biphasic.execution.job import WorkItem
from biphasic.execution.requests import read_requests
from biphasic.execution.scheduler import Failure, RetryPolicy, Scheduler, WorkOutcome
from biphasic.execution.slots import Slot, local_slots
from biphasic.locks import refuse_while_cleaning
from biphasic.model.compute.device import compute_device, parse_device
from biphasic.progress import progress_bar, say_on
from biphasic.shown import Shown, inline, shown_path, table_lines
from biphasic.study import STORE
from biphasic.study.by_name import link_states
from biphasic.study.plan.plan import Plan
from biphasic.study.run.jobs import WORKER, load_job
from biphasic.study.run.monitor import Monitor
from biphasic.study.run.prepare import prepare_study
from biphasic.study.run.register import could_register
from biphasic.study.run.report import refresh_record, write_study_report
from biphasic.study.study import Study


@dataclass(frozen=True)
class Resources:
    """What a study may compute on."""

    site: Site | None = None  # A cluster; this machine when None, which all but `policy` describe.
    num_workers: int | None = None  # Parallel jobs; as many as fit when None.
    num_threads: int = 1  # Threads per job.
    jobs_per_gpu: int = 1  # Jobs that share a GPU.
    policy: RetryPolicy = field(default_factory=RetryPolicy)

    def slots(self) -> tuple[Slot, ...]:
        """Return the slots that jobs run on."""
        return local_slots(
            num_workers=self.num_workers,
            num_threads=self.num_threads,
            jobs_per_gpu=self.jobs_per_gpu,
        )


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
        return load_study(self.folder, self.folder.parent / STORE)

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


def execute_study(
    study: Study, *, resources: Resources, console: Console, fresh: bool = False
) -> StudyOutcome:
    """Run the missing jobs of a study, and write its report."""
    if resources.site is not None:
        check_fits(resources.site, study.folder, study.config.compute.processes)
    with study.locked():
        refuse_while_cleaning(study.store)
        read_requests(study.folder)  # those to an earlier run are void
        study.save()
        prepared = prepare_study(study, console=console, fresh=fresh)
        if could_register(prepared.plan):
            say_on(console)(
                "the questions of this study are not registered; to show that they came before "
                "the first score, stop and run 'biphasic study register' first"
            )
        refresh_record(prepared)
        items = prepared.missing_work()
        outcome = WorkOutcome(0, (), ())
        try:
            if items:
                outcome = _run(items, prepared.plan, resources, console)
        finally:
            names = {point.name: point.state for point in prepared.plan.points}
            link_states(study.store, study.config.name, names, say=say_on(console))
        with progress_bar(console, "writing the report"):
            report = write_study_report(prepared)
    not_tried = (f"{item.label}: skipped, it needs a failed job" for item in outcome.blocked)
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


def _run(items: list[WorkItem], plan: Plan, resources: Resources, console: Console) -> WorkOutcome:
    slots = () if resources.site else resources.slots()
    num_slots = resources.site.num_slots if resources.site else len(slots)
    monitor = Monitor(items, plan, num_slots=num_slots, console=console)
    with monitor, _executor(plan.study, resources, slots, monitor) as executor:
        return Scheduler(
            items,
            executor,
            policy=resources.policy,
            watcher=monitor,
            read_requests=lambda: read_requests(plan.study.folder),
        ).run()


def _executor(
    study: Study, resources: Resources, slots: Sequence[Slot], monitor: Monitor
) -> AbstractContextManager[Executor]:
    """Return the executor of this machine, or of a cluster."""
    if resources.site is None:
        return LocalExecutor(
            study.store,
            slots,
            load_job=load_job,
            worker=WORKER,
            num_threads=resources.num_threads,
            log_folder=study.folder / "logs",
            watch=monitor.progress,
        )
    # Parsl is an optional dependency.
    from biphasic.execution.cluster.executor import ClusterExecutor  # noqa: PLC0415

    return ClusterExecutor(
        study.store,
        resources.site,
        load_job=load_job,
        worker=WORKER,
        folder=study.folder,
        processes=study.config.compute.processes,
        watch=monitor.progress,
        say=monitor.say,
    )
