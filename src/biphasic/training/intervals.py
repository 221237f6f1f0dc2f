"""Intervals and measurements of a training run: commands, study files and functions read them here.

Nothing here imports pydantic before a field is made: help of commands stays fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Interval:
    """A number of updates between two events of a run; 0 has the meaning that `help` states."""

    default: int
    help: str

    def field(self) -> Any:
        """Return the field of a record of settings."""
        from pydantic import Field  # noqa: PLC0415

        return Field(default=self.default, ge=0, description=self.help)


CHECKPOINT_EVERY = Interval(200, "Updates between checkpoints; 0 for none.")
HELDOUT_EVERY = Interval(100, "Updates between held-out evaluations; 0 for the last only.")
# Objectives whose held-out loss is recorded.
HELDOUT_OBJECTIVES: tuple[Literal["clm", "mlm"], ...] = ("clm", "mlm")
