"""The `biphasic site` commands: site files of clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from biphasic.cli.options import Quiet, Root, echo, progress_console

site_app = typer.Typer(help="Write and check site files of clusters.", no_args_is_help=True)

SiteFile = Annotated[Path, typer.Argument(help="Site file (YAML).")]


@site_app.command("check")
def site_check(
    file: SiteFile,
    root: Root = Path("runs"),
    timeout: Annotated[
        float, typer.Option(min=1, help="Minutes to wait for the first node.")
    ] = 10.0,
    quiet: Quiet = False,
) -> None:
    """Run one trivial job on the cluster, and say what the node has.

    Needs the extra 'cluster'.
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
    partition: Annotated[
        str | None, typer.Option(help="Partition. Default: the scheduler's default.")
    ] = None,
) -> None:
    """Write a first site file from what Slurm's 'sinfo' says of this cluster."""
    from biphasic.errors import ConfigError
    from biphasic.execution.cluster.discover import site_text
    from biphasic.files import write_text

    if file.exists():
        raise ConfigError(f"{file}: exists already")
    write_text(file, site_text(partition))
    echo(f"site: {file}; adjust it, then run: biphasic site check {file}")
