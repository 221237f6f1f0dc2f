"""Updates whose losses have not been read back from the device yet.

Reading a number makes the processor wait until the device has computed it, and the device wait
until the processor has gone on. So losses and norms of several updates are read at once, and only
then does anyone learn whether they are finite; nothing is saved before that.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from biphasic.errors import DivergedError


@dataclass(frozen=True)
class PendingStep:
    """An update that has been made.

    Attributes:
        record: Its line of metrics, without what is read back or measured.
        loss: Scalar on the device.
        gradient_norm: Scalar on the device, before clipping.
        num_tokens: Tokens read, padding excluded.
    """

    record: dict[str, Any]
    loss: Tensor
    gradient_norm: Tensor
    num_tokens: int


@dataclass(frozen=True)
class MeasuredStep:
    """An update that has been read back.

    Attributes:
        record: Its whole line of metrics.
        num_tokens: Tokens read, padding excluded.
        seconds: Its share, by tokens, of the time since the reading before.
        fault: What of it is not finite; None where all is.
    """

    record: dict[str, Any]
    num_tokens: int
    seconds: float
    fault: str | None

    def refuse_fault(self) -> None:
        """Stop where the update was not finite.

        Raises:
            DivergedError: It was not; the step is named.
        """
        if self.fault is not None:
            step = self.record["step"] - 1  # counted from 0, as rows and schedules are
            raise DivergedError.at(step, self.fault)


class PendingSteps:
    """Updates since the last reading, and the time they take."""

    def __init__(self, *, read_back_every: int) -> None:
        """Begin with none.

        Args:
            read_back_every: Updates after which a reading is due.
        """
        self._every = read_back_every
        self._steps: list[PendingStep] = []
        self._began = 0.0

    @property
    def are_due(self) -> bool:
        """Whether as many wait as may."""
        return len(self._steps) >= self._every

    def begin(self) -> None:
        """Let time count from here, unless it already does."""
        if not self._steps:
            self._began = time.monotonic()

    def add(self, step: PendingStep) -> None:
        """Note an update."""
        self._steps.append(step)

    def read_back(self) -> list[MeasuredStep]:
        """Wait for all updates and return them in order; none wait afterwards."""
        values = _values(
            [tensor for each in self._steps for tensor in (each.loss, each.gradient_norm)]
        )
        seconds = time.monotonic() - self._began
        speed = sum(each.num_tokens for each in self._steps) / seconds
        losses, norms = values[::2], values[1::2]
        read = [
            _measured(step, loss, norm, speed)
            for step, loss, norm in zip(self._steps, losses, norms, strict=True)
        ]
        self._steps = []
        return read


def _values(scalars: list[Tensor]) -> list[float]:
    """Read all in one transfer."""
    return torch.stack([scalar.float() for scalar in scalars]).tolist()


def _measured(step: PendingStep, loss: float, norm: float, speed: float) -> MeasuredStep:
    fault = None if math.isfinite(norm) else "gradient"
    return MeasuredStep(
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
