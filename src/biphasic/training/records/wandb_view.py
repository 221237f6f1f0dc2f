"""Weights & Biases as a view of a run's metrics: off by default, and offline by default.

`BIPHASIC_WANDB` names the project; child processes inherit it. `WANDB_MODE=online` and wandb's
other variables have their usual meaning.
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
    """Log the runs of a block to a project; None leaves it to the environment.

    Raises:
        ConfigError: wandb is not installed.
    """
    before = os.environ.get(PROJECT)
    if project is not None:
        os.environ[PROJECT] = project
    try:
        if os.environ.get(PROJECT):
            _library()  # fail before any work
        yield
    finally:
        if project is not None:
            os.environ.pop(PROJECT)
            if before is not None:
                os.environ[PROJECT] = before


class WandbView:
    """One run in the project."""

    def __init__(self, project: str, folder: Path) -> None:
        """Start a run named after a folder of event files; its own files go to `wandb/` there."""
        self._run = _library().init(
            project=project,
            name=folder.name,
            dir=str(folder.parents[1]),
            mode=os.environ.get("WANDB_MODE", "offline"),
        )

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Log the numbers of a step."""
        self._run.log(dict(scalars), step=step)

    def close(self) -> None:
        """End the run."""
        self._run.finish()


def wandb_view(folder: Path) -> WandbView | None:
    """Return the view of a run by its event-file folder, if requested."""
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
