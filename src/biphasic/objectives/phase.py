"""What every phase can set, whatever its objective."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from biphasic.config import Config
from biphasic.objectives.lr import LearningRateConfig

MOST_STEPS = 10_000_000
"""Each update is named by a hash; a mistyped number must not keep a planner busy for days."""
MOST_TOKENS = 1 << 20
"""Longest row; no encoder reads more."""


class PhaseConfig(Config):
    """A contiguous part of a run."""

    steps: Annotated[int, Field(gt=0, le=MOST_STEPS)]
    """Optimizer steps."""
    learning_rate: LearningRateConfig | None = None
    """Begins a schedule of its own, which lasts until another phase begins one."""
    learning_rate_scale: PositiveFloat = 1.0
    """Factor on the schedule during this phase."""
    optimizer_state: Literal["keep", "reset"] = "keep"
    """Whether the moments of AdamW go on, or begin anew with the phase."""
    freeze: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Parameters that stay as they are in this phase, by name; `*` stands for anything."""
    corpus: Path | None = None
    """Folder of a finished corpus to read in this phase, made with the same tokenizer; the run's
    own when not given. A mixture is a corpus: `biphasic corpus build` makes it."""
    max_seqlen: Annotated[int, Field(gt=0, le=MOST_TOKENS)] | None = None
    """Capacity of a row in this phase, in tokens; the run's when not given."""
    rows_per_step: PositiveInt | None = None
    """Rows of the global batch in this phase; the run's when not given."""
    rope_theta: PositiveFloat | None = None
    """Base of the rotary frequencies from this phase on."""
