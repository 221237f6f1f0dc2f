"""Plugins from Python: `plugin.list` and `check`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING

from biphasic.api.verb import Function, Root, Verb, option

if TYPE_CHECKING:
    from biphasic.shown import Findings


class List(Root):
    """List installed plugins, and the files of plugins in a store.

    Raises:
        OSError: The store cannot be read.

    Example:
        >>> from biphasic import plugin
        >>> plugin.list().sentences
        ()
    """

    def __call__(self) -> Findings:
        from biphasic.plugin_code import stored_lines
        from biphasic.plugins import installed_lines
        from biphasic.shown import Findings

        return Findings((*installed_lines(), *stored_lines(self.store)))


class Check(Verb):
    """Check that the classes of a file, or an installed plugin, follow the rules of their kind.

    Raises:
        ConfigError: A rule is broken, which the message names; or there is nothing to check.

    Example:
        >>> from biphasic import plugin
        >>> len(plugin.check("stride.py").sentences)
        1
    """

    named: str = option(metavar="FILE[:CLASS]")
    """File, or file and class, or name of an installed plugin."""
    _: KW_ONLY
    task: Path | str | None = option(default=None, metavar="FOLDER")
    """For kinds of tasks: a folder with files of a small task."""
    overrides: Sequence[str] = option(default=(), flag="--set", metavar="KEY=VALUE")
    """Setting of the class, e.g. every=3; not of kinds of tasks."""

    def __call__(self) -> Findings:
        from biphasic.config import parse_overrides
        from biphasic.shown import Findings
        from biphasic.testing import check_named

        settings = parse_overrides(self.overrides)
        return Findings(
            (*check_named(self.named, settings, None if self.task is None else Path(self.task)),)
        )


list = Function(List)
check = Function(Check)
