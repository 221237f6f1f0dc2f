"""Site files of clusters from Python: `site.init` and `check`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from biphasic.api.arguments import check_arguments
from biphasic.errors import ConfigError
from biphasic.files import expanded
from biphasic.store import DEFAULT_ROOT

if TYPE_CHECKING:
    from biphasic.api.results.lists import Findings


def init(file: Path | str = "site.yaml", *, partition: str | None = None) -> Path:
    """Write a site file from the output of Slurm's `sinfo`, to be adjusted.

    Args:
        file: Site file to write.
        partition: Partition. Default: the scheduler's default.

    Raises:
        ConfigError: The file exists, or there is no such partition.

    Example:
        >>> from biphasic import site
        >>> site.init("site.yaml").name
        'site.yaml'
    """
    from biphasic.execution.cluster.site import site_text
    from biphasic.files import write_text

    path = expanded(file)
    if path.exists():
        raise ConfigError(f"{path}: exists already")
    write_text(path, site_text(partition))
    return path


@check_arguments()
def check(
    file: Path | str,
    *,
    root: Path | str = DEFAULT_ROOT,
    timeout: float = 10.0,
    quiet: bool = False,
) -> Findings:
    """Run one trivial job on the cluster, and show what the node has.

    Needs the extra `cluster`.

    Args:
        file: Site file (YAML).
        root: Folder of studies and their shared store.
        timeout: Minutes to wait for the first node.
        quiet: Show results and errors only.

    Raises:
        ConfigError: The file is invalid.
        StudyError: No node ran the job.

    Example:
        >>> from biphasic import site
        >>> site.check("site.yaml")  # doctest: +SKIP
        node1: Python 3.12.3, torch 2.13.0, 16 cores
    """
    from biphasic.api.results.lists import Findings
    from biphasic.execution.cluster.check import check_site
    from biphasic.execution.cluster.site import load_site
    from biphasic.progress import progress_console

    site, console = load_site(Path(file)), progress_console(quiet=quiet)
    return Findings(
        (*check_site(site, expanded(root).resolve(), minutes=timeout, console=console),)
    )
