"""Defaults of a training run that commands, study files and functions share; without pydantic."""

from __future__ import annotations

from typing import Literal

CHECKPOINT_EVERY = 200  # updates between checkpoints
HELDOUT_EVERY = 100  # updates between held-out evaluations
HELDOUT_OBJECTIVES: tuple[Literal["clm", "mlm"], ...] = ("clm", "mlm")  # whose loss is recorded
