"""Weights & Biases as a view of a run's metrics: off unless asked for, offline unless told so.

`BIPHASIC_WANDB` names the project; processes that are started know it too. `WANDB_MODE=online` (and
wandb's other variables) hold as wandb reads them.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from biphasic.errors import ConfigError

PROJECT = "BIPHASIC_WANDB"


@contextmanager
def viewed_in_wandb(project: str | None) -> Iterator[None]:
    """Show the runs of a block in a project; None leaves it to the environment.

    Raises:
        ConfigError: wandb is not installed.
    """
    before = os.environ.get(PROJECT)
    if project is not None:
        os.environ[PROJECT] = project
    try:
        if os.environ.get(PROJECT):
            _library()  # before any work
        yield
    finally:
        if project is not None:
            os.environ.pop(PROJECT)
            if before is not None:
                os.environ[PROJECT] = before


class WandbView:
    """One run in the project."""

    def __init__(self, project: str, folder: Path) -> None:
        """Begin a run that is called as a folder of event files; its own lie in `wandb/` there."""
        self._run = _library().init(
            project=project,
            name=folder.name,
            dir=str(folder.parents[1]),
            mode=os.environ.get("WANDB_MODE", "offline"),
        )

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Show numbers of a step."""
        self._run.log(dict(scalars), step=step)

    def close(self) -> None:
        """End the run."""
        self._run.finish()


def wandb_view(folder: Path) -> WandbView | None:
    """Return the view of a run whose event files lie in a folder, where it was asked for."""
    project = os.environ.get(PROJECT)
    return WandbView(project, folder) if project else None


def _library() -> Any:
    try:
        return importlib.import_module("wandb")
    except ImportError:
        raise ConfigError(
            "wandb: Weights & Biases is not installed; install it with "
            "python -m pip install 'biphasic[wandb]'"
        ) from None
