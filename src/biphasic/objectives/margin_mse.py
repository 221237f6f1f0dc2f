"""Margin MSE: a document must be better than a negative by as much as a teacher says.

Reference: Hofstätter et al. 2020, arXiv:2010.02666, section 3.2.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import NonNegativeInt

from biphasic.data.pairs.rows import PairBatch, PairReading
from biphasic.errors import ConfigError
from biphasic.facts import LOSS_UNITS
from biphasic.objectives.contrastive import PairObjective
from biphasic.objectives.supervision import StatesLoss


class MarginMse(PairObjective):
    """Squared error of the margin of each document over each of its negatives."""

    loss_unit: ClassVar[str] = LOSS_UNITS["margin_mse"]
    objective: Literal["margin_mse"]  # type: ignore[assignment]
    hard_negatives: NonNegativeInt | None = None
    """Most negatives of a pair that are read, the first ones; by default all."""
    similarity: Literal["cosine", "dot"] = "cosine"
    """Of two vectors: the cosine, or the product for a teacher whose scores exceed 1."""

    @property
    def reading(self) -> PairReading:
        """The pairs of each step, with their negatives and the teacher's margins."""
        return replace(super().reading, hard_negatives=self.hard_negatives, margins=True)

    def loss_of(self, batch: PairBatch) -> StatesLoss:
        """Return the error of the margins."""
        from biphasic.objectives.info_nce import Margins  # noqa: PLC0415 - needs torch

        if batch.margins is None or not len(batch.margins):
            raise ConfigError(
                f"pairs: a step of {self.pairs} has no negative with scores of a teacher; add "
                "negatives with 'biphasic pairs mine', and then vectors with 'pairs teach'"
            )
        return Margins(
            len(batch.queries), batch.triples, batch.margins, self.pooling, self.similarity
        )
