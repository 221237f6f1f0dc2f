"""Several objectives in turn, each for a number of steps.

Reference: Yu et al. 2024 (AntLM), arXiv:2412.03275, section 3: alternating epochs of causal and
masked language modelling. The study (arXiv 2507.00994) names it as future work. Turns are counted
in steps here; an objective listed twice has turns twice as long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import PositiveInt, model_validator

from biphasic.data.rows import RowBatch
from biphasic.errors import ConfigError
from biphasic.objectives.mix import Mix, SeveralObjectives
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.objectives.registry import OBJECTIVES, one_of
from biphasic.objectives.supervision import Supervision, Vocabulary

_ASK_FIRST = "the current objective depends on the step of the phase: call `at` first"

if TYPE_CHECKING:
    _InTurn = ObjectiveConfig
else:
    _InTurn = one_of(*OBJECTIVES, Mix)


class Alternate(SeveralObjectives):
    """Alternating objectives."""

    objective: Literal["alternate"]  # type: ignore[assignment]
    every: PositiveInt
    """Optimizer steps per turn."""
    objectives: tuple[_InTurn, ...]
    """The objectives in order, repeated; any except `alternate`, without phase settings. A schedule
    of an objective covers the whole phase, not its turns."""

    @model_validator(mode="after")
    def _check_objectives(self) -> Self:
        if all(objective == self.objectives[0] for objective in self.objectives):
            raise ValueError("objectives: give two or more that differ, or use one without turns")
        return self

    @property
    def weighted(self) -> tuple[tuple[float, ObjectiveConfig], ...]:
        """The objectives with equal shares: each has a turn in every round."""
        return tuple((1 / len(self.objectives), objective) for objective in self.objectives)

    @property
    def name_in_arms(self) -> str:
        """Its name, the steps of a turn, and the name of each objective."""
        return ".".join([f"alt{self.every}", *(one.name_in_arms for one in self.objectives)])

    @property
    def turns(self) -> tuple[ObjectiveConfig, ...]:
        """Those of all objectives, in their order."""
        return tuple(turn for objective in self.objectives for turn in objective.turns)

    @property
    def parts(self) -> tuple[tuple[float, ObjectiveConfig], ...]:
        """Not callable: only the current objective has parts."""
        raise RuntimeError(_ASK_FIRST)

    def at(self, step: int, *, num_steps: int) -> ObjectiveConfig:
        """Return the current objective."""
        turn = step // self.every % len(self.objectives)
        return self.objectives[turn].at(step, num_steps=num_steps)

    def check(self, *, num_steps: int, rows_per_step: int) -> None:
        """Raise an error if an objective never gets a turn, or refuses the phase itself."""
        needed = self.every * (len(self.objectives) - 1) + 1
        if num_steps < needed:
            raise ConfigError(
                f"alternate: {num_steps} steps end before every objective had a turn of "
                f"{self.every}; use {needed} steps or more, or shorter turns"
            )
        for objective in self.objectives:
            objective.check(num_steps=num_steps, rows_per_step=rows_per_step)

    def determinants(self, mask_seed: int) -> dict[str, Any]:
        """Not callable: only the current objective determines a step."""
        raise RuntimeError(_ASK_FIRST)

    def supervise(
        self, batch: RowBatch, vocabulary: Vocabulary, *, mask_seed: int
    ) -> tuple[Supervision, ...]:
        """Not callable: the current objective supervises."""
        raise RuntimeError(_ASK_FIRST)
