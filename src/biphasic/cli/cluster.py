"""The `biphasic site` and `biphasic job` commands: clusters, and jobs for other schedulers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from biphasic.api import job, site
from biphasic.cli.command import Commands, command
from biphasic.cli.options import echo

if TYPE_CHECKING:
    from biphasic.api.results.lists import Findings, JobRun
    from biphasic.study.run.jobs import AnyJob

site_app = Commands("Write and check site files of clusters.")
job_app = Commands("Run single jobs of studies.")


@site_app.command("check")
@command(site.check, timeout=typer.Option(min=1))
def _check(found: Findings) -> None:
    echo(str(found))


@site_app.command("init")
@command(site.init)
def _init(file: Path) -> None:
    echo(f"site: {file}; adjust it, then run: biphasic site check {file}")


@job_app.command("run")
@command(
    job.run,
    list_file=typer.Option("--list"),
    index=typer.Option(min=0, envvar="JOB_COMPLETION_INDEX"),
)
def _run(done: JobRun) -> None:
    echo(str(done))


@job_app.command("show")
@command(job.show)
def _show(loaded: AnyJob) -> None:
    echo(loaded.model_dump_json(indent=1))
