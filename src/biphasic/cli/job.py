"""`biphasic job`: single jobs of studies, for schedulers of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from biphasic.cli.options import Quiet, Root, echo, progress_console

job_app = typer.Typer(help="Run single jobs of studies.", no_args_is_help=True)

JobId = Annotated[str, typer.Argument(help="Identity, as 'biphasic study jobs FILE' prints it.")]


@job_app.command("run")
def job_run(
    job: JobId,
    root: Root = Path("runs"),
    threads: Annotated[int, typer.Option(min=1, help="Threads to compute with.")] = 1,
    quiet: Quiet = False,
) -> None:
    """Do one job in this process, or find it done; what it needs must be there."""
    from biphasic.evaluation.evaluate import compute_threads
    from biphasic.execution.inline import run_here
    from biphasic.execution.slots import check_cores
    from biphasic.study.paths import STORE
    from biphasic.study.run.jobs import load_job
    from biphasic.training.memory import tune_allocator

    console = progress_console(quiet=quiet)
    check_cores(num_threads=threads)
    found = load_job(root.resolve() / STORE, job)
    if found.is_done():
        echo(f"done before: {found.label}")
        return
    found.check_needs()
    tune_allocator()
    with compute_threads(threads):
        run_here(found, console=console)
    echo(f"done: {found.label}")


@job_app.command("show")
def job_show(job: JobId, root: Root = Path("runs")) -> None:
    """Print what a job is given, as JSON."""
    from biphasic.study.paths import STORE
    from biphasic.study.run.jobs import load_job

    echo(load_job(root.resolve() / STORE, job).model_dump_json(indent=1))
