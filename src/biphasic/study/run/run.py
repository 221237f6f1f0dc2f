"""Run a study: what is missing, longest path first, and the report."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from biphasic.execution.executor import LocalExecutor
from biphasic.execution.graph import WorkItem
from biphasic.execution.requests import forget_requests, read_requests
from biphasic.execution.scheduler import Failure, RetryPolicy, Scheduler, WorkOutcome
from biphasic.execution.slots import Slot, local_slots
from biphasic.locks import locked_folder, refuse_while_cleaning
from biphasic.model.compute.device import compute_device, parse_device
from biphasic.progress import progress_bar
from biphasic.study.paths import STORE
from biphasic.study.run.jobs import WORKER, load_job
from biphasic.study.run.monitor import Monitor
from biphasic.study.run.prepare import PreparedStudy, prepare_study
from biphasic.study.run.report import refresh_edited_report, write_study_report
from biphasic.study.spec.load import save_resolved
from biphasic.study.spec.study import StudyConfig

DEFAULT_ROOT = "runs"


@dataclass(frozen=True)
class Resources:
    """What a study may use of this machine.

    Attributes:
        num_workers: Jobs at once; as many as there is room for when None.
        num_threads: Threads per job.
        jobs_per_gpu: Jobs that share a GPU.
        policy: How often failed jobs are tried.
    """

    num_workers: int | None = None
    num_threads: int = 1
    jobs_per_gpu: int = 1
    policy: RetryPolicy = field(default_factory=RetryPolicy)

    def slots(self) -> tuple[Slot, ...]:
        """Return what jobs run on."""
        return local_slots(
            num_workers=self.num_workers,
            num_threads=self.num_threads,
            jobs_per_gpu=self.jobs_per_gpu,
        )


@dataclass(frozen=True)
class StudyOutcome:
    """What a call to `run_study` did.

    Attributes:
        folder: The study's folder.
        report: The report, `report.html`.
        num_executed: Jobs that ran here.
        failures: One line per job that failed; jobs that needed it were not tried.
        set_aside: The jobs that failed themselves.
        is_stopped: Whether it was cancelled before the end.
    """

    folder: Path
    report: Path
    num_executed: int
    failures: tuple[str, ...]
    set_aside: tuple[Failure, ...] = ()
    is_stopped: bool = False


def execute_study(
    config: StudyConfig, *, root: Path, resources: Resources, console: Console
) -> StudyOutcome:
    """Do all that a study still lacks, and write its report.

    Args:
        config: The study.
        root: Folder for studies and for the store that they share.
        resources: What it may use.
        console: Where progress is shown.

    Raises:
        LockedError: Another process is running this study.
        ConfigError: The study cannot be run as written.
        DataError: Data are missing or cannot be used.
        StudyError: The disk has no room for it.
    """
    folder = root.resolve() / config.name
    with study_lock(folder):
        refuse_while_cleaning(root.resolve() / STORE)
        forget_requests(folder)
        save_resolved(config, folder)
        study = prepare_study(config, root=root, console=console)
        refresh_edited_report(study)
        items = study.missing_work()
        outcome = _run(items, study, resources, console) if items else WorkOutcome(0, (), ())
        with progress_bar(console, "writing the report"):
            report = write_study_report(study)
    not_tried = [f"{item.label}: not tried, it needs a job that failed" for item in outcome.blocked]
    return StudyOutcome(
        folder,
        report,
        num_executed=outcome.num_executed,
        failures=(*map(str, outcome.failures), *not_tried),
        set_aside=outcome.failures,
        is_stopped=outcome.is_stopped,
    )


def study_lock(folder: Path) -> AbstractContextManager[object]:
    """Hold a study's folder for this process.

    Raises:
        LockedError: Another process holds it.
    """
    return locked_folder(folder, remedy="use another --root")


def default_workers(num_threads: int = 1, *, device: str | None = None) -> int:
    """Return how many jobs to run at once: one on a GPU, else as many as cores allow."""
    is_gpu = (parse_device(device) or compute_device()).type == "cuda"
    return 1 if is_gpu else max((os.cpu_count() or 1) // num_threads, 1)


def _run(
    items: list[WorkItem], study: PreparedStudy, resources: Resources, console: Console
) -> WorkOutcome:
    """Do the work on this machine."""
    slots = resources.slots()
    monitor = Monitor(items, study.folder, plan=study.plan, num_slots=len(slots), console=console)
    with (
        monitor as told,
        LocalExecutor(
            study.store,
            slots,
            load_job=load_job,
            worker=WORKER,
            num_threads=resources.num_threads,
            log_folder=study.folder / "logs",
            watch=told.progress,
        ) as engine,
    ):
        return Scheduler(
            items,
            engine,
            policy=resources.policy,
            watcher=told,
            read_requests=lambda: read_requests(study.folder),
        ).run()
