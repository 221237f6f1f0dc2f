"""A run's metrics: one JSON object per line; TensorBoard and Weights & Biases are views of it."""

from __future__ import annotations

import json
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from biphasic.records import HeldoutLine, TrainingLine
from biphasic.training.records.wandb_view import wandb_view


class MetricsLog:
    """Lines of metrics since the last planned state.

    The lines are held in memory and written with each checkpoint, so a resumed run has the same
    lines as an uninterrupted one. Views are written immediately.
    """

    def __init__(self, lines: list[str], tensorboard: Path | None, *, next_step: int) -> None:
        """Continue after `lines`.

        Events of `next_step` and later are replaced.
        """
        self.lines = list(lines)
        self._writer = self._wandb = None
        if tensorboard:
            self._writer = SummaryWriter(str(tensorboard), purge_step=next_step)
            self._wandb = wandb_view(tensorboard)

    def write(self, line: TrainingLine | HeldoutLine) -> None:
        """Append a line."""
        self.lines.append(json.dumps(line.model_dump(), sort_keys=True, allow_nan=False))
        scalars = _scalars(line)
        if self._writer:
            for name, value in scalars.items():
                self._writer.add_scalar(name, value, line.step)
        if self._wandb:
            self._wandb.write(scalars, line.step)

    def text(self) -> str:
        """Return all lines as a file's content."""
        return "".join(f"{line}\n" for line in self.lines)

    def close(self) -> None:
        """Flush the views."""
        for view in (self._writer, self._wandb):
            if view:
                view.close()


def _scalars(line: TrainingLine | HeldoutLine) -> dict[str, float]:
    if isinstance(line, HeldoutLine):
        return {f"heldout/{name}": value for name, value in line.heldout.items()}
    names = ("loss", "learning_rate", "gradient_norm", "tokens_per_second")
    return {f"train/{name}": getattr(line, name) for name in names}
