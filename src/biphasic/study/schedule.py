"""Runs jobs side by side, each as soon as the one it needs is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path

from rich.console import Console

from biphasic.study.display import StudyDisplay
from biphasic.study.engine import LocalEngine
from biphasic.study.jobs import Job


def run_jobs(
    jobs: Sequence[Job],
    needs: Mapping[str, str | None],
    *,
    console: Console,
    log_folder: Path,
    num_workers: int,
    num_threads: int,
) -> tuple[str, ...]:
    """Run jobs as soon as what they need is there; return what failed, one line each.

    Args:
        jobs: In order of preference.
        needs: By job, the job that must be done before; those without one can be left out.
        console: Where progress is shown.
        log_folder: Where each worker's log goes.
        num_workers: Jobs at once.
        num_threads: Threads per job.
    """
    waiting = {job.id: job for job in jobs}
    failures: list[str] = []
    running: dict[Future[None], Job] = {}
    with (
        StudyDisplay(console, num_jobs=len(jobs)) as display,
        LocalEngine(
            num_workers=min(num_workers, len(jobs)),
            num_threads=num_threads,
            log_folder=log_folder,
            watch=display.progress,
        ) as engine,
    ):
        open_states = set(waiting)
        while waiting or running:
            # Only as many as can run: training comes first whenever its turn is there.
            ready = [job for job in waiting.values() if needs.get(job.id) not in open_states]
            for job in ready[: num_workers - len(running)]:
                running[engine.submit(waiting.pop(job.id))] = job
            if not running:
                break  # what is left needs something that failed
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                job, error = running.pop(future), future.exception()
                display.ended(job, error)
                if error:
                    failures.append(str(error))
                else:
                    open_states.discard(job.id)
    failures += [f"{job.label}: not tried, it needs a job that failed" for job in waiting.values()]
    return tuple(failures)
