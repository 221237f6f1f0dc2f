"""The `biphasic plugins` and `biphasic plugin` commands: list and check plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from biphasic.api import plugin
from biphasic.cli.command import Commands, command
from biphasic.cli.options import echo

if TYPE_CHECKING:
    from biphasic.api.results.lists import Findings

plugin_app = Commands("Check plugins.")


@command(plugin.list)
def plugins_command(found: Findings) -> None:
    echo(str(found) or "no plugin is installed, and the store has none")


@plugin_app.command("check")
@command(
    plugin.check,
    named=typer.Argument(metavar="FILE[:CLASS]"),
    task=typer.Option(metavar="FOLDER"),
)
def _check(kept: Findings) -> None:
    echo(str(kept))
