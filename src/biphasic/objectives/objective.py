"""The interface of objectives; each is implemented in its own file."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from biphasic.config import Config
from biphasic.data.rows import RowBatch
from biphasic.objectives.supervision import Supervision, Vocabulary


class ObjectiveConfig(Config):
    """A training objective on rows."""

    objective: str
    """Its name."""

    @property
    @abstractmethod
    def directions(self) -> frozenset[bool]:
        """The causal flags that it trains with; the model must support each."""

    def at(self, step: int, *, num_steps: int) -> ObjectiveConfig:
        """Return the objective at one step of a phase; most never change.

        Steps of the phase are counted from 0.
        """
        del step, num_steps
        return self

    def check(self, *, num_steps: int, rows_per_step: int) -> None:
        """Check that the objective can be trained in a phase of this size; most accept any.

        Raises:
            ConfigError: It cannot; the message states what would work.
        """

    def check_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Check that the objective supports the vocabulary; most support any.

        Raises:
            ConfigError: It does not.
        """

    @abstractmethod
    def determinants(self, mask_seed: int) -> dict[str, Any]:
        """Return everything that determines inputs and labels of a step, given the rows."""

    @abstractmethod
    def supervise(
        self, batch: RowBatch, vocabulary: Vocabulary, *, mask_seed: int
    ) -> tuple[Supervision, ...]:
        """Make inputs and labels of rows, in one part or in several that attend differently.

        The losses of all parts are summed and divided once by the number of all labels.

        Raises:
            DataError: The rows contain nothing to learn from.
        """
