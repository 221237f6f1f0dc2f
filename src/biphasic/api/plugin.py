"""Plugins from Python: `plugin.list` and `check`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from biphasic.api.arguments import check_arguments
from biphasic.store import DEFAULT_ROOT, store_of

if TYPE_CHECKING:
    from biphasic.api.results.lists import Findings


def list(*, root: Path | str = DEFAULT_ROOT) -> Findings:
    """List installed plugins, and the files of plugins in a store.

    Args:
        root: Folder of studies and their shared store.

    Raises:
        OSError: The store cannot be read.

    Example:
        >>> from biphasic import plugin
        >>> plugin.list().sentences
        ()
    """
    from biphasic.api.results.lists import Findings
    from biphasic.plugin_code import stored_lines
    from biphasic.plugins import installed_lines

    return Findings((*installed_lines(), *stored_lines(store_of(root))))


@check_arguments()
def check(named: str, *, task: Path | str | None = None, overrides: Sequence[str] = ()) -> Findings:
    """Check that the classes of a file, or an installed plugin, follow the rules of their kind.

    Args:
        named: File, or file and class, or name of an installed plugin.
        task: For kinds of tasks: a folder with files of a small task.
        overrides: Setting of the class, e.g. every=3; not of kinds of tasks.

    Raises:
        ConfigError: A rule is broken, which the message names; or there is nothing to check.

    Example:
        >>> from biphasic import plugin
        >>> len(plugin.check("stride.py").sentences)
        1
    """
    from biphasic.api.results.lists import Findings
    from biphasic.config import parse_overrides
    from biphasic.testing import check_named

    settings = parse_overrides(overrides)
    return Findings((*check_named(named, settings, None if task is None else Path(task)),))
