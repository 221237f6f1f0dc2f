"""Updates whose losses have not been read back from the device yet.

Reading a number makes the CPU wait until the device has computed it, and the device then waits for
the CPU. Losses and norms of several updates are therefore read together. Only then are they checked
to be finite, and nothing is saved before that. The device itself skips an update that is not
finite, and all later ones, so the weights are then those before that update.
"""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from biphasic.records import LedgerEntry


@dataclass(frozen=True)
class Position:
    """What a run has read: number, rows and costs of its updates so far."""

    step: int = 0
    rows_sha256: str = hashlib.sha256(b"").hexdigest()
    ledger: tuple[LedgerEntry, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens read in all phases."""
        return sum(entry.tokens for entry in self.ledger)


@dataclass(frozen=True)
class PendingStep:
    """An update that is not read back yet.

    Attributes:
        before: What was read before it.
        record: Its line of metrics, without values that are read back or measured.
        loss: Scalar on the device.
        gradient_norm: Scalar on the device, before clipping.
        num_tokens: Tokens read, excluding padding.
    """

    before: Position
    record: dict[str, Any]
    loss: Tensor
    gradient_norm: Tensor
    num_tokens: int


@dataclass(frozen=True)
class MeasuredStep:
    """An update that has been read back.

    Attributes:
        record: Its complete line of metrics.
        seconds: Its share, by tokens, of the time since the previous reading.
        fault: Name of the non-finite value; None if all are finite.
    """

    before: Position
    record: dict[str, Any]
    num_tokens: int
    seconds: float
    fault: str | None


class PendingSteps:
    """Updates since the last reading, and their time."""

    def __init__(self, *, read_back_every: int) -> None:
        self._every = read_back_every
        self._steps: list[PendingStep] = []
        self._began = 0.0

    @property
    def are_due(self) -> bool:
        """Whether a reading is due."""
        return len(self._steps) >= self._every

    def begin(self) -> None:
        """Start the clock, unless it is already running."""
        if not self._steps:
            self._began = time.monotonic()

    def add(self, step: PendingStep) -> None:
        """Add an update."""
        self._steps.append(step)

    def read_back(self) -> list[MeasuredStep]:
        """Wait for all pending updates, remove them, and return them in order."""
        if not self._steps:  # all were skipped
            return []
        scalars = [tensor for step in self._steps for tensor in (step.loss, step.gradient_norm)]
        values = torch.stack([scalar.float() for scalar in scalars]).tolist()  # one transfer
        seconds = time.monotonic() - self._began
        speed = sum(step.num_tokens for step in self._steps) / seconds
        steps, self._steps = self._steps, []
        return [
            _measured(step, loss, norm, speed)
            for step, loss, norm in zip(steps, values[::2], values[1::2], strict=True)
        ]


def _measured(step: PendingStep, loss: float, norm: float, speed: float) -> MeasuredStep:
    fault = None if math.isfinite(norm) else "gradient"
    return MeasuredStep(
        before=step.before,
        record={
            **step.record,
            "loss": loss,
            "gradient_norm": norm,
            "tokens_per_second": round(speed, 1),
        },
        num_tokens=step.num_tokens,
        seconds=step.num_tokens / speed,
        fault=fault if math.isfinite(loss) else "loss",
    )
