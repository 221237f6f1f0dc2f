"""The `biphasic site` and `biphasic job` commands: clusters, and jobs for other schedulers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from biphasic.cli.command import Commands
from biphasic.cli.options import AtLeastOne, Quiet, Root, echo, progress_console
from biphasic.errors import ConfigError
from biphasic.study import STORE

site_app = Commands("Write and check site files of clusters.")
job_app = Commands("Run single jobs of studies.")


@site_app.command("check")
def site_check(
    file: Annotated[Path, typer.Argument(help="Site file (YAML).")],
    root: Root = Path("runs"),
    timeout: Annotated[float, typer.Option(min=1)] = 10.0,
    quiet: Quiet = False,
) -> None:
    """Run one trivial job on the cluster, and say what the node has.

    Needs the extra 'cluster'.

    Args:
        timeout: Minutes to wait for the first node.
    """
    from biphasic.execution.cluster.check import check_site
    from biphasic.execution.cluster.site import load_site

    site = load_site(file)
    console = progress_console(quiet=quiet)
    for line in check_site(site, root.resolve(), minutes=timeout, console=console):
        echo(line)


@site_app.command("init")
def site_init(
    file: Annotated[Path, typer.Argument(help="Site file to write.")] = Path("site.yaml"),
    partition: str | None = None,
) -> None:
    """Write a first site file from what Slurm's 'sinfo' says of this cluster.

    Args:
        partition: Partition. Default: the scheduler's default.
    """
    from biphasic.execution.cluster.site import site_text
    from biphasic.files import write_text

    if file.exists():
        raise ConfigError(f"{file}: exists already")
    write_text(file, site_text(partition))
    echo(f"site: {file}; adjust it, then run: biphasic site check {file}")


@job_app.command("run")
def job_run(
    job: Annotated[str | None, typer.Argument()] = None,
    list_: Annotated[Path | None, typer.Option("--list")] = None,
    index: Annotated[int | None, typer.Option(min=0, envvar="JOB_COMPLETION_INDEX")] = None,
    root: Root = Path("runs"),
    threads: AtLeastOne = 1,
    quiet: Quiet = False,
) -> None:
    """Run one job in this process, unless it is done.

    Its inputs must exist.

    Args:
        job: Job identity; or give --list.
        list_: File with a job identity in each line.
        index: Line of --list, from 0.
        threads: Compute threads.
    """
    from biphasic.evaluation.evaluate import compute_threads
    from biphasic.execution.inline import run_here
    from biphasic.execution.slots import check_cores
    from biphasic.study.run.jobs import load_job
    from biphasic.training.memory import tune_allocator

    console = progress_console(quiet=quiet)
    check_cores(num_threads=threads)
    loaded = load_job(root.resolve() / STORE, _chosen_job(job, list_, index))
    if loaded.is_done():
        echo(f"already done: {loaded.label}")
        return
    loaded.check_needs()
    tune_allocator()
    with compute_threads(threads):
        run_here(loaded, console=console)
    echo(f"done: {loaded.label}")


def _chosen_job(job: str | None, list_: Path | None, index: int | None) -> str:
    """Return the identity of the job to run."""
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
def job_show(job: str, root: Root = Path("runs")) -> None:
    """Print a job's inputs as JSON.

    Args:
        job: Job identity, from 'biphasic study jobs FILE'.
    """
    from biphasic.study.run.jobs import load_job

    echo(load_job(root.resolve() / STORE, job).model_dump_json(indent=1))
