"""Phases: contiguous parts of a run, each with one objective and the common settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Field, create_model

from biphasic.objectives.alternate import Alternate
from biphasic.objectives.mix import Mix
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.objectives.phase import PhaseConfig
from biphasic.objectives.registry import OBJECTIVES


def phase_type(objectives: Sequence[type[ObjectiveConfig]]) -> Any:
    """Return the type of a phase with any of some objectives, for a record's field."""
    kinds = tuple(
        create_model(
            f"{objective.__name__}Phase",
            __base__=(PhaseConfig, objective),
            __doc__=objective.__doc__,
        )
        for objective in objectives
    )
    return Annotated[Union[kinds], Field(discriminator="objective")]  # noqa: UP007


if TYPE_CHECKING:

    class Phase(PhaseConfig, ObjectiveConfig):
        """A contiguous part of a run, with its objective."""

else:
    Phase = phase_type((*OBJECTIVES, Alternate, Mix))
