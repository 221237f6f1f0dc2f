"""Site files of clusters from Python: `site.init` and `check`."""

from __future__ import annotations

from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING

from biphasic.api.verb import Function, Quiet, Root, Verb, option
from biphasic.errors import ConfigError
from biphasic.files import expanded

if TYPE_CHECKING:
    from biphasic.shown import Findings


class Init(Verb):
    """Write a site file from the output of Slurm's `sinfo`, to be adjusted.

    Raises:
        ConfigError: The file exists, or there is no such partition.

    Example:
        >>> from biphasic import site
        >>> site.init("site.yaml").name
        'site.yaml'
    """

    file: Path | str = "site.yaml"
    """Site file to write."""
    _: KW_ONLY
    partition: str | None = None
    """Partition. Default: the scheduler's default."""

    def __call__(self) -> Path:
        from biphasic.execution.cluster.site import site_text
        from biphasic.files import write_text

        path = expanded(self.file)
        if path.exists():
            raise ConfigError(f"{path}: exists already")
        write_text(path, site_text(self.partition))
        return path


class Check(Root, Quiet):
    """Run one trivial job on the cluster, and show what the node has.

    Needs the extra `cluster`.

    Raises:
        ConfigError: The file is invalid.
        StudyError: No node ran the job.

    Example:
        >>> from biphasic import site
        >>> site.check("site.yaml")  # doctest: +SKIP
        node1: Python 3.12.3, torch 2.13.0, 16 cores
    """

    file: Path | str
    """Site file (YAML)."""
    _: KW_ONLY
    timeout: float = option(default=10.0, least=1)
    """Minutes to wait for the first node."""

    def __call__(self) -> Findings:
        from biphasic.execution.cluster.executor import check_site
        from biphasic.execution.cluster.site import load_site
        from biphasic.shown import Findings

        site, console = load_site(Path(self.file)), self.console
        return Findings(
            (*check_site(site, self.root_folder.resolve(), minutes=self.timeout, console=console),)
        )


init = Function(Init)
check = Function(Check)
