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
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from biphasic.records import LedgerEntry, TrainingLine
from biphasic.training.step.input import StepInput


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

    def after(
        self, given: StepInput, *, phase: int, objective: str, corpus: str | None = None
    ) -> Position:
        """Return the position after one more update, in a phase with this corpus if its own."""
        costs = {
            "steps": 1,
            # A document counts where its first chunk is read, so that chunks do not count it again.
            "documents": sum(piece.start == 0 for piece in given.batch.pieces),
            "tokens": given.batch.packed.num_tokens,
            "supervised_tokens": given.num_supervised,
            "flops": given.flops,
        }
        entries = [*self.ledger]
        if entries and entries[-1].phase == phase:
            last = entries.pop()
            costs = {name: getattr(last, name) + cost for name, cost in costs.items()}
        entry = LedgerEntry(phase=phase, objective=objective, corpus=corpus, **costs)
        ledger = (*entries, entry)
        rows = hashlib.sha256(bytes.fromhex(self.rows_sha256) + given.sha256)
        return Position(self.step + 1, rows.hexdigest(), ledger)


@dataclass(frozen=True)
class StepReport:
    """An update; loss, norm and speed are known when it has been read back."""

    before: Position  # what was read before it
    phase: int
    objective: str
    learning_rate: float
    tokens: int  # tokens that it read, excluding padding
    supervised_tokens: int
    loss: float = math.nan
    gradient_norm: float = math.nan  # before clipping
    speed: float = math.nan  # tokens per second since the previous reading

    @property
    def step(self) -> int:
        """Its number, from 1 on."""
        return self.before.step + 1

    @property
    def seconds(self) -> float:
        """Its share, by tokens, of the time since the previous reading."""
        return self.tokens / self.speed

    @property
    def fault(self) -> str | None:
        """Name of the non-finite value; None if all are finite."""
        if not math.isfinite(self.loss):
            return "loss"
        return None if math.isfinite(self.gradient_norm) else "gradient"

    @property
    def line(self) -> TrainingLine:
        """Its line of metrics."""
        return TrainingLine(
            step=self.step,
            phase=self.phase,
            objective=self.objective,
            loss=self.loss,
            learning_rate=self.learning_rate,
            gradient_norm=self.gradient_norm,
            tokens=self.before.tokens + self.tokens,
            supervised_tokens=self.supervised_tokens,
            tokens_per_second=round(self.speed, 1),
        )


class PendingSteps:
    """Updates since the last reading, and their time."""

    def __init__(self, *, read_back_every: int) -> None:
        self._every = read_back_every
        self._steps: list[tuple[StepReport, Tensor, Tensor]] = []
        self._began = 0.0

    @property
    def are_due(self) -> bool:
        """Whether a reading is due."""
        return len(self._steps) >= self._every

    def begin(self) -> None:
        """Start the clock, unless it is already running."""
        if not self._steps:
            self._began = time.monotonic()

    def add(self, step: StepReport, loss: Tensor, gradient_norm: Tensor) -> None:
        """Add an update with its scalars on the device."""
        self._steps.append((step, loss, gradient_norm))

    def read_back(self) -> list[StepReport]:
        """Wait for all pending updates, remove them, and return them in order."""
        if not self._steps:  # all were skipped
            return []
        scalars = [scalar for _, *both in self._steps for scalar in both]
        values = torch.stack([scalar.float() for scalar in scalars]).tolist()  # one transfer
        seconds = time.monotonic() - self._began
        # One speed for all: when each update ended is known to the device alone.
        speed = sum(step.tokens for step, _, _ in self._steps) / seconds
        steps, self._steps = self._steps, []
        return [
            replace(step, loss=loss, gradient_norm=norm, speed=speed)
            for (step, _, _), loss, norm in zip(steps, values[::2], values[1::2], strict=True)
        ]
