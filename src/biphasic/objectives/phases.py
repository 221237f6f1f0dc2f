"""Phases: contiguous parts of a run, each with one objective and the common settings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, create_model

from biphasic.config import Config
from biphasic.facts import LOSS_UNITS
from biphasic.objectives.alternate import Alternate
from biphasic.objectives.contrastive import Contrastive
from biphasic.objectives.distill import Distill, MarginMse
from biphasic.objectives.lr import LearningRateConfig
from biphasic.objectives.mix import Mix
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.objectives.registry import OBJECTIVES, one_of

MOST_STEPS = 10_000_000
"""Each update gets a hash; a mistyped number should not keep a planner busy for days."""
MOST_TOKENS = 1 << 20  # maximum row length; no encoder reads more
MOST_TOKENS_PER_STEP = 1 << 28  # a hundred times the study's; its rows are planned in memory


class PhaseConfig(Config):
    """A contiguous part of a run."""

    steps: Annotated[int, Field(gt=0, le=MOST_STEPS)]
    """Optimizer steps."""
    learning_rate: LearningRateConfig | None = None
    """Starts a new schedule, which lasts until another phase starts one."""
    learning_rate_scale: PositiveFloat = 1.0
    """Factor on the schedule during this phase."""
    optimizer_state: Literal["keep", "reset"] = "keep"
    """Whether the optimizer's moments are kept, or reset at the start of the phase."""
    freeze: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Parameters frozen in this phase, by name; `*` matches anything. A tied head is frozen with
    the embeddings."""
    corpus: Path | None = None
    """Folder of a finished corpus for this phase, made with the same tokenizer; by default the
    run's own. A mixture is a corpus: `biphasic corpus build` makes it."""
    max_seqlen: Annotated[int, Field(gt=0, le=MOST_TOKENS)] | None = None
    """Row length in this phase, in tokens; by default the run's."""
    rows_per_step: PositiveInt | None = None
    """Rows per global batch in this phase; by default the run's."""
    rope_theta: PositiveFloat | None = None
    """Base of the rotary frequencies from this phase on."""


PHASE_OBJECTIVES = (*OBJECTIVES, Alternate, Mix, Contrastive, Distill, MarginMse)

if TYPE_CHECKING:

    class Phase(PhaseConfig, ObjectiveConfig):
        """A contiguous part of a run, with its objective."""

else:
    _KINDS = tuple(
        create_model(f"{kind.__name__}Phase", __base__=(PhaseConfig, kind), __doc__=kind.__doc__)
        for kind in PHASE_OBJECTIVES
    )
    Phase = one_of(*_KINDS, mixin=PhaseConfig)


def loss_units(phases: Iterable[ObjectiveConfig]) -> dict[str, str]:
    """Return units of logged losses by name, where they are not those of `LOSS_UNITS`."""
    units: dict[str, str] = {}
    for phase in phases:
        units[phase.short_name] = phase.unit_of_loss
        for part in (part for turn in phase.turns for _, part in turn.parts):
            units |= {name: own.unit_of_loss for name, (own, _) in part.heldout_measures.items()}
    return {name: unit for name, unit in units.items() if unit != LOSS_UNITS.get(name, "")}


def uses_of_head(phases: Iterable[ObjectiveConfig]) -> tuple[str, ...]:
    """Return the names of the objectives that need a language-model head, once each."""
    return tuple(dict.fromkeys(phase.short_name for phase in phases if phase.needs_head))
