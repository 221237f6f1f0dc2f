"""The `biphasic plugins` and `biphasic plugin` commands: list and check plugins."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from biphasic.cli.options import Commands, Root, echo

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
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE")] = None,
) -> None:
    """Check that the classes of a file, or an installed plugin, keep the rules of their kind.

    Args:
        named: File, or file and class, or name of an installed plugin.
        overrides: Setting of the class, e.g. every=3.
    """
    from biphasic.config import parse_overrides
    from biphasic.training.conformance.check import check_plugins

    for line in check_plugins(named, parse_overrides(overrides or ())):
        echo(line)
