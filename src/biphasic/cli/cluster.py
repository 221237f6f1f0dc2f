"""The `biphasic plugins`, `plugin`, `job` and `site` commands: plugins, and other schedulers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from biphasic.api import job, plugin, site
from biphasic.cli.command import Commands
from biphasic.cli.output import echo

if TYPE_CHECKING:
    from biphasic.shown import Findings
    from biphasic.study.run.jobs import AnyJob

commands = Commands()


@commands.calls("plugins", plugin.list)
def _list(found: Findings) -> None:
    echo(str(found) or "no plugin is installed, and the store has none")


plugin_app = Commands("Check plugins.")
plugin_app.prints("check", plugin.check)

site_app = Commands("Write and check site files of clusters.")
site_app.prints("check", site.check)


@site_app.calls("init", site.init)
def _init(file: Path) -> None:
    echo(f"site: {file}; adjust it, then run: biphasic site check {file}")


job_app = Commands("Run single jobs of studies.")
job_app.prints("run", job.run)


@job_app.calls("show", job.show)
def _show(loaded: AnyJob) -> None:
    echo(loaded.model_dump_json(indent=1))
