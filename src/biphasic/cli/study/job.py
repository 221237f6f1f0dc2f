"""The `biphasic job` commands: single jobs of studies, for external schedulers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from biphasic.cli.options import Quiet, Root, echo, progress_console

job_app = typer.Typer(help="Run single jobs of studies.", no_args_is_help=True)

JobId = Annotated[str, typer.Argument(help="Job identity, from 'biphasic study jobs FILE'.")]


@job_app.command("run")
def job_run(
    job: JobId,
    root: Root = Path("runs"),
    threads: Annotated[int, typer.Option(min=1, help="Compute threads.")] = 1,
    quiet: Quiet = False,
) -> None:
    """Run one job in this process, unless it is done.

    Its inputs must exist.
    """
    from biphasic.evaluation.evaluate import compute_threads
    from biphasic.execution.inline import run_here
    from biphasic.execution.slots import check_cores
    from biphasic.study.paths import STORE
    from biphasic.study.run.jobs import load_job
    from biphasic.training.memory import tune_allocator

    console = progress_console(quiet=quiet)
    check_cores(num_threads=threads)
    loaded = load_job(root.resolve() / STORE, job)
    if loaded.is_done():
        echo(f"already done: {loaded.label}")
        return
    loaded.check_needs()
    tune_allocator()
    with compute_threads(threads):
        run_here(loaded, console=console)
    echo(f"done: {loaded.label}")


@job_app.command("show")
def job_show(job: JobId, root: Root = Path("runs")) -> None:
    """Print a job's inputs as JSON."""
    from biphasic.study.paths import STORE
    from biphasic.study.run.jobs import load_job

    echo(load_job(root.resolve() / STORE, job).model_dump_json(indent=1))
