"""Run a study: its missing jobs, longest path first, then the report."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from biphasic.analysis.records import StudyRecords, load_records
from biphasic.analysis.scores.source import study_scores
from biphasic.analysis.tables.results import format_table
from biphasic.analysis.tables.text import score_rows
from biphasic.execution.executor import ExecutorConfig, Work
from biphasic.execution.job import WorkItem
from biphasic.execution.requests import read_requests
from biphasic.execution.scheduler import Failure, RetryPolicy, Scheduler, WorkOutcome
from biphasic.locks import refuse_while_cleaning
from biphasic.model.compute.device import compute_device, parse_device
from biphasic.plugins import keep_files
from biphasic.progress import progress_bar, say_on
from biphasic.shown import Shown, inline, shown_path, table_lines
from biphasic.study.by_name import link_states
from biphasic.study.plan.plan import Plan
from biphasic.study.run.jobs import WORKER, load_job
from biphasic.study.run.monitor import Monitor
from biphasic.study.run.prepare import prepare_study
from biphasic.study.run.register import could_register
from biphasic.study.run.report import refresh_record, write_study_report
from biphasic.study.study import Study


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
        prepared = prepare_study(study, console=console, fresh=fresh)
        if could_register(prepared.plan):
            say_on(console)(
                "the questions of this study are not registered; to show that they came before "
                "the first score, stop and run 'biphasic study register' first"
            )
        refresh_record(prepared)
        prepared.compute_baselines(console=console)
        items = prepared.missing_work()
        outcome = WorkOutcome(0, (), ())
        try:
            if items:
                outcome = _run(items, prepared.plan, executor, policy, console)
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
