"""The `biphasic plugins` and `biphasic plugin` commands: list and check plugins."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from biphasic.cli.command import Commands
from biphasic.cli.options import Root, echo

plugin_app = Commands("Check plugins.")


def plugins_command(root: Root = Path("runs")) -> None:
    """List the plugins of installed packages, and the files of plugins that a store has."""
    from biphasic.plugins import installed_lines, stored_lines
    from biphasic.study import STORE

    lines = [*installed_lines(), *stored_lines(root.resolve() / STORE)]
    echo("\n".join(lines or ["no plugin is installed, and the store has none"]))


@plugin_app.command("check")
def check_command(
    named: Annotated[str, typer.Argument(metavar="FILE[:CLASS]")],
    task: Annotated[Path | None, typer.Option(metavar="FOLDER")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE")] = None,
) -> None:
    """Check that the classes of a file, or an installed plugin, keep the rules of their kind.

    Args:
        named: File, or file and class, or name of an installed plugin.
        task: For kinds of tasks: a folder with files of a small task.
        overrides: Setting of the class, e.g. every=3; of objectives and optimizers.
    """
    from biphasic.config import parse_overrides
    from biphasic.tasks.conformance import check_kinds
    from biphasic.training.conformance.check import check_plugins

    settings = parse_overrides(overrides or ())
    for line in check_kinds(named, task) if task else check_plugins(named, settings):
        echo(line)
