"""Distillation: a text's vector must be that of a teacher.

Reference: Vujanic and Rueckstiess 2025 (LEAF), arXiv:2509.12539. Our deviation: no layer maps the
student's vectors to the teacher's width; `biphasic pairs teach` reduces the teacher's instead.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from biphasic.data.pairs.rows import PairBatch, PairReading
from biphasic.errors import ConfigError
from biphasic.facts import LOSS_UNITS
from biphasic.objectives.contrastive import PairObjective
from biphasic.objectives.supervision import StatesLoss


class Distill(PairObjective):
    """Squared distance of unit vectors to those of a teacher, per text."""

    loss_unit: ClassVar[str] = LOSS_UNITS["distill"]
    objective: Literal["distill"]  # type: ignore[assignment]

    @property
    def reading(self) -> PairReading:
        """The pairs of each step; negatives are not needed."""
        return replace(super().reading, hard_negatives=0)

    def loss_of(self, batch: PairBatch) -> StatesLoss:
        """Return the regression on the teacher's vectors."""
        from biphasic.objectives.info_nce import Distance  # noqa: PLC0415

        if batch.vectors is None:
            raise ConfigError(
                f"pairs: {self.pairs} has no vectors of a teacher; make them with "
                "'biphasic pairs teach'"
            )
        return Distance(batch.vectors, self.pooling)
