"""Distillation: vectors of texts, or margins of documents over negatives, must be a teacher's.

Reference: Vujanic and Rueckstiess 2025 (LEAF), arXiv:2509.12539, for vectors. Our deviation: no
layer maps the student's vectors to the teacher's width; `biphasic pairs teach` reduces the
teacher's instead. Hofstätter et al. 2020, arXiv:2010.02666, section 3.2, for margins.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import NonNegativeInt

from biphasic.data.pairs.folder import Pairs
from biphasic.data.pairs.rows import PairBatch, PairReading
from biphasic.errors import ConfigError
from biphasic.objectives.contrastive import PairObjective
from biphasic.objectives.supervision import StatesLoss


class Distill(PairObjective):
    """Squared distance of unit vectors to those of a teacher, per text."""

    objective: Literal["distill"]  # type: ignore[assignment]

    @property
    def reading(self) -> PairReading:
        """The pairs of each step; negatives are not needed."""
        return replace(super().reading, hard_negatives=0)

    def check_pairs(self, pairs: Pairs, *, width: int) -> None:
        """Check that there are a teacher's vectors, as wide as the model's."""
        if pairs.vectors is None:
            raise ConfigError(
                f"pairs: {self.pairs} has no vectors of a teacher; make them with "
                "'biphasic pairs teach'"
            )
        if (given := pairs.vectors.shape[1]) != width:
            raise ConfigError(
                f"distill: the teacher's vectors have {given} dimensions, the model's {width}; "
                f"make them with 'pairs teach --width {width}'"
            )

    def loss_of(self, batch: PairBatch) -> StatesLoss:
        """Return the regression on the teacher's vectors."""
        from biphasic.objectives.info_nce import Distance  # noqa: PLC0415 - needs torch

        assert batch.vectors is not None  # noqa: S101 - by `check_pairs`
        return Distance(self.pooling, batch.vectors)


class MarginMse(PairObjective):
    """Squared error of the margin of each document over each of its negatives."""

    objective: Literal["margin_mse"]  # type: ignore[assignment]
    hard_negatives: NonNegativeInt | None = None
    """Most negatives of a pair that are read, the first ones; by default all."""
    similarity: Literal["cosine", "dot"] = "cosine"
    """Of two vectors: the cosine, or the product for a teacher whose scores exceed 1."""

    @property
    def reading(self) -> PairReading:
        """The pairs of each step, with their negatives and the teacher's margins."""
        return replace(super().reading, hard_negatives=self.hard_negatives, margins=True)

    def check_pairs(self, pairs: Pairs, *, width: int) -> None:
        """Check that some pair has a margin; each step needs one."""
        del width
        has_margin = (
            bool(pairs.negatives(pair)[: self.hard_negatives])
            and (pairs.vectors is not None or bool(pairs.scores(pair)))
            for pair in range(len(pairs))
        )
        if not any(has_margin):
            raise self._lacks_margins(f"{self.pairs}")

    def loss_of(self, batch: PairBatch) -> StatesLoss:
        """Return the error of the margins."""
        from biphasic.objectives.info_nce import Margins  # noqa: PLC0415 - needs torch

        if not len(batch.margins):
            raise self._lacks_margins(f"a step of {self.pairs}")
        queries = len(batch.queries)
        return Margins(self.pooling, queries, batch.triples, batch.margins, self.similarity)

    def _lacks_margins(self, what: str) -> ConfigError:
        return ConfigError(
            f"pairs: {what} has no negative with scores of a teacher; add negatives with 'biphasic "
            "pairs mine', and then vectors with 'pairs teach'"
        )
