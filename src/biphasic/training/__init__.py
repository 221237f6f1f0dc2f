"""Training: recipe, loop, step, states, and defaults that commands and study files share."""

from __future__ import annotations

from typing import Literal

CHECKPOINT_EVERY = 200  # updates between checkpoints
HELDOUT_EVERY = 100  # updates between held-out evaluations
HELDOUT_OBJECTIVES: tuple[Literal["clm", "mlm"], ...] = ("clm", "mlm")  # whose loss is recorded
