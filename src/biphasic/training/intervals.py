"""Intervals of a training run: commands, study files and Python functions read them here.

Nothing here imports pydantic before a field is made: help of commands stays fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
