"""The executors that a study can run on: this machine, clusters, and plugins."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from biphasic.config import Config, load_settings, parse_config
from biphasic.execution.cluster.site import Site, check_fits, load_site
from biphasic.execution.executor import Executor, ExecutorConfig, Local, Work
from biphasic.plugins import accepting, anchored, hashed_names, is_plugin, names_of


class Cluster(Site, ExecutorConfig):
    """Nodes of a cluster."""

    executor: Literal["cluster"] = "cluster"  # type: ignore[assignment]

    def check(self, folder: Path, *, processes: int) -> None:
        """Check what can be known of a site before work starts."""
        check_fits(self, folder, processes)

    def start(self, work: Work) -> AbstractContextManager[Executor]:
        """Start Parsl."""
        # An optional dependency.
        from biphasic.execution.cluster.executor import ClusterExecutor  # noqa: PLC0415

        return ClusterExecutor(work, self)


if TYPE_CHECKING:
    AnyExecutor = ExecutorConfig
else:
    AnyExecutor = accepting(
        Annotated[Local | Cluster, Field(discriminator="executor")],
        names_of((Local, Cluster), "executor"),
        group="executors",
        key="executor",
        base=ExecutorConfig,
    )


class _Held(Config):
    executor: AnyExecutor


def load_executor(named: Path | str) -> ExecutorConfig:
    """Return the executor of a site file, or a plugin, as `./my.py:Mine` or its name."""
    folder, raw = Path(), {"executor": str(named)}
    if not is_plugin("executors", str(named)):
        folder, raw = Path(named).resolve().parent, load_settings(named)
        if raw.get("executor", "cluster") == "cluster":
            return Cluster(**dict(load_site(Path(named))))
    held = {"executor": hashed_names(raw, folder)}
    return anchored(parse_config(_Held, held, where=str(named)).executor, folder)
