"""What every objective offers; one file each implements it."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from biphasic.config import Config
from biphasic.data.rows import RowBatch
from biphasic.objectives.supervision import Supervision, Vocabulary


class ObjectiveConfig(Config):
    """What a model is to learn from rows."""

    objective: str
    """Its name."""

    @property
    @abstractmethod
    def directions(self) -> frozenset[bool]:
        """The causal flags that it trains under, each of which the model must heed."""

    def at(self, step: int, *, num_steps: int) -> ObjectiveConfig:
        """Return the objective as it is at one step of a phase; most never change.

        Args:
            step: Counted from the beginning of the phase.
            num_steps: Of the phase.
        """
        del step, num_steps
        return self

    def check(self, *, num_steps: int, rows_per_step: int) -> None:
        """Refuse a phase of a size that the objective cannot be trained in; most accept any.

        Args:
            num_steps: Of the phase.
            rows_per_step: Rows of the global batch.

        Raises:
            ConfigError: It cannot, and what would do.
        """

    def check_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Refuse a vocabulary that the objective cannot do with; most accept any.

        Raises:
            ConfigError: It cannot.
        """

    @abstractmethod
    def determinants(self, mask_seed: int) -> dict[str, Any]:
        """Return all that decides inputs and labels of a step, given the rows."""

    @abstractmethod
    def supervise(
        self, batch: RowBatch, vocabulary: Vocabulary, *, mask_seed: int
    ) -> tuple[Supervision, ...]:
        """Make inputs and labels of rows: in one part, or in several that attend differently.

        The losses of all parts are summed and divided once, by all their labels.

        Raises:
            DataError: The rows hold nothing to learn from.
        """
