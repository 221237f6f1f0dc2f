"""A run's metrics: one JSON object per line; TensorBoard and Weights & Biases are views of it.

Weights & Biases is off by default. `BIPHASIC_WANDB` names the project; child processes inherit it.
It is offline unless `WANDB_MODE` says otherwise; wandb's other variables have their usual meaning.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from biphasic.child import variables_set
from biphasic.errors import ConfigError, install_command
from biphasic.records import HeldoutLine, TrainingLine

PROJECT = "BIPHASIC_WANDB"


class MetricsLog:
    """Lines of metrics since the last planned state."""

    # The lines are held in memory and written with each checkpoint, so a resumed run has the same
    # lines as an uninterrupted one. Views are written immediately.

    def __init__(self, lines: list[str], tensorboard: Path | None, *, next_step: int) -> None:
        """Continue after `lines`; without a folder for TensorBoard there are no views."""
        # Events of `next_step` and later are replaced.
        self.lines = list(lines)
        evaluated = [line["heldout"] for line in self.read() if "heldout" in line]
        self.heldout: dict[str, float] = evaluated[-1] if evaluated else {}  # the last losses
        self._writer = self._wandb = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - plans need no torch

            self._writer = SummaryWriter(str(tensorboard), purge_step=next_step)
            self._wandb = _wandb_run(tensorboard)

    def write(self, line: TrainingLine | HeldoutLine) -> None:
        """Append a line."""
        self.lines.append(json.dumps(line.model_dump(), sort_keys=True, allow_nan=False))
        if isinstance(line, HeldoutLine):
            self.heldout = line.heldout
            judged = {} if line.minimal_pairs is None else {"minimal_pairs": line.minimal_pairs}
            scalars = {f"heldout/{name}": value for name, value in (line.heldout | judged).items()}
        else:
            names = ("loss", "learning_rate", "gradient_norm", "tokens_per_second")
            scalars = {f"train/{name}": getattr(line, name) for name in names}
        if self._writer:
            for name, value in scalars.items():
                self._writer.add_scalar(name, value, line.step)
        if self._wandb:
            self._wandb.log(scalars, step=line.step)

    def read(self) -> list[dict[str, Any]]:
        """Return the fields of all lines."""
        return [json.loads(line) for line in self.lines]

    def text(self) -> str:
        """Return all lines as a file's content."""
        return "".join(f"{line}\n" for line in self.lines)

    def close(self) -> None:
        """Flush the views."""
        if self._writer:
            self._writer.close()
        if self._wandb:
            self._wandb.finish()


@contextmanager
def viewed_in_wandb(project: str | None) -> Iterator[None]:
    """Log the runs of a block to a project; None leaves it to the environment."""
    with variables_set({} if project is None else {PROJECT: project}):
        if os.environ.get(PROJECT):
            _wandb()  # fail before any work
        yield


def _wandb_run(folder: Path) -> Any:
    """Start a run named after a folder of event files; None if no project is named."""
    project = os.environ.get(PROJECT)
    if not project:
        return None
    return _wandb().init(
        project=project,
        name=folder.name,
        dir=str(folder.parents[1]),
        mode=os.environ.get("WANDB_MODE", "offline"),
    )


def _wandb() -> Any:
    try:
        return importlib.import_module("wandb")
    except ImportError:
        raise ConfigError(
            f"wandb: Weights & Biases is not installed; install it with: {install_command('wandb')}"
        ) from None
