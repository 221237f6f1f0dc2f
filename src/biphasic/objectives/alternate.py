"""Several objectives by turns, each for a number of steps.

Reference: Yu et al. 2024 (AntLM), arXiv:2412.03275, section 3: epochs of causal and of masked
language modelling by turns. The study (arXiv 2507.00994) names it as future work. Turns here are
counted in steps; an objective that is listed twice has turns twice as long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, Union

from pydantic import Field, PositiveInt, model_validator

from biphasic.data.rows import RowBatch
from biphasic.errors import ConfigError
from biphasic.objectives.mix import Mix
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.objectives.registry import OBJECTIVES
from biphasic.objectives.supervision import Supervision, Vocabulary

_ASK_FIRST = "whose turn it is depends on the step of the phase: ask `at` first"

if TYPE_CHECKING:
    _InTurn = ObjectiveConfig
else:
    _InTurn = Annotated[Union[(*OBJECTIVES, Mix)], Field(discriminator="objective")]


class Alternate(ObjectiveConfig):
    """Objectives by turns."""

    objective: Literal["alternate"]  # type: ignore[assignment]
    every: PositiveInt
    """Optimizer steps of a turn."""
    objectives: tuple[_InTurn, ...]
    """Whose turn it is, in order and over again; any but `alternate`, without settings of phases.
    A schedule of one of them runs over the whole phase, not over its turns."""

    @model_validator(mode="after")
    def _check_objectives(self) -> Self:
        if all(each == self.objectives[0] for each in self.objectives):
            raise ValueError("objectives: give two or more that differ, or use one without turns")
        return self

    @property
    def directions(self) -> frozenset[bool]:
        """Those of all that have turns."""
        return frozenset().union(*(each.directions for each in self.objectives))

    def at(self, step: int, *, num_steps: int) -> ObjectiveConfig:
        """Return the objective whose turn it is."""
        turn = step // self.every % len(self.objectives)
        return self.objectives[turn].at(step, num_steps=num_steps)

    def check(self, *, num_steps: int, rows_per_step: int) -> None:
        """Refuse turns that never come, and what the objectives themselves refuse.

        Raises:
            ConfigError: The phase ends before the last objective's turn, say.
        """
        needed = self.every * (len(self.objectives) - 1) + 1
        if num_steps < needed:
            raise ConfigError(
                f"alternate: {num_steps} steps end before every objective had a turn of "
                f"{self.every}; use {needed} steps or more, or shorter turns"
            )
        for each in self.objectives:
            each.check(num_steps=num_steps, rows_per_step=rows_per_step)

    def check_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Refuse a vocabulary that one of the objectives cannot do with."""
        for each in self.objectives:
            each.check_vocabulary(vocabulary)

    def determinants(self, mask_seed: int) -> dict[str, Any]:
        """Never to be asked: a step is determined by the objective whose turn it is alone."""
        del mask_seed
        raise RuntimeError(_ASK_FIRST)

    def supervise(
        self, batch: RowBatch, vocabulary: Vocabulary, *, mask_seed: int
    ) -> tuple[Supervision, ...]:
        """Never to be asked: the objective whose turn it is supervises."""
        del batch, vocabulary, mask_seed
        raise RuntimeError(_ASK_FIRST)
