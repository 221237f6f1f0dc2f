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
    job: Annotated[str | None, typer.Argument(help="Job identity; or give --list.")] = None,
    list_: Annotated[
        Path | None, typer.Option("--list", help="File with a job identity in each line.")
    ] = None,
    index: Annotated[
        int | None,
        typer.Option(min=0, envvar="JOB_COMPLETION_INDEX", help="Line of --list, from 0."),
    ] = None,
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
    loaded = load_job(root.resolve() / STORE, _chosen(job, list_, index))
    if loaded.is_done():
        echo(f"already done: {loaded.label}")
        return
    loaded.check_needs()
    tune_allocator()
    with compute_threads(threads):
        run_here(loaded, console=console)
    echo(f"done: {loaded.label}")


def _chosen(job: str | None, list_: Path | None, index: int | None) -> str:
    """Return the identity of the job to run."""
    from biphasic.errors import ConfigError

    if (job is None) == (list_ is None):
        raise ConfigError("give a job identity, or --list FILE with --index N")
    if list_ is None:
        return str(job)
    try:
        lines = list_.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--list {list_}: cannot be read ({error})") from None
    if not lines:
        raise ConfigError(f"--list {list_}: has no jobs")
    if index is None or index >= len(lines):
        raise ConfigError(f"--index: give a line of {list_}, from 0 to {len(lines) - 1}")
    return lines[index].strip()


@job_app.command("show")
def job_show(job: JobId, root: Root = Path("runs")) -> None:
    """Print a job's inputs as JSON."""
    from biphasic.study.paths import STORE
    from biphasic.study.run.jobs import load_job

    echo(load_job(root.resolve() / STORE, job).model_dump_json(indent=1))
