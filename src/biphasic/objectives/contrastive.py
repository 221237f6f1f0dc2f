"""Objectives on pairs: contrastive training, and distillation of a teacher's vectors or margins.

References: van den Oord et al. 2018, arXiv:1807.03748, section 2.3 (InfoNCE); Henderson et al.
2017, arXiv:1705.00652, section 4.4 (negatives from the batch). Documents that are known answers to
a query are never its negatives.

Distillation: Vujanic and Rueckstiess 2025 (LEAF), arXiv:2509.12539, for vectors. Our deviation: no
layer maps the student's vectors to the teacher's width; `biphasic pairs teach` reduces the
teacher's instead. Hofstätter et al. 2020, arXiv:2010.02666, section 3.2, for margins.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from biphasic.data.packing import Attention
from biphasic.data.pairs import PairBatch, PairReading, Pairs, chosen_pairs
from biphasic.data.rows import RowBatch
from biphasic.errors import ConfigError
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.objectives.supervision import StatesLoss, Supervision, Vocabulary

_HeldoutFraction = Annotated[float, Field(ge=0, le=0.5, exclude_if=lambda share: not share)]
# Not written if nothing is held out: earlier identities and records stay as they were.


class PairObjective(ObjectiveConfig):
    """An objective on the vectors of texts in pairs."""

    pairs: Path
    """Folder of pairs, made by `biphasic pairs`."""
    # Of a single pair, no other document could be a negative, and the loss would be 0.
    batch: Annotated[int, Field(ge=2)] = 64
    """Pairs per step. With `compute.max_tokens_per_pass`, texts of large batches are read in
    several passes, and the loss is that of the whole batch."""
    pooling: Literal["mean", "first", "last"] = "mean"
    """State that stands for a text: the mean of all, or that of the first or the last token."""
    attention: Attention = "bidirectional"
    """How texts are read."""
    query_prompt: str = ""
    """Text before each query."""
    document_prompt: str = ""
    """Text before each document."""
    heldout_fraction: _HeldoutFraction = 0.0
    """Share of the queries, by their hash, whose pairs are not trained on. Their loss is recorded,
    and `biphasic study tune` chooses rates by it."""

    @property
    def directions(self) -> frozenset[bool]:
        """The one in which texts are read."""
        return frozenset({self.attention == "causal"})

    @property
    def needs_head(self) -> bool:
        """No: it compares vectors of texts."""
        return False

    @property
    def heldout_weights(self) -> dict[str, float]:
        """Its own loss of held-out pairs, if there are any."""
        return {self.short_name: 1.0} if self.heldout_fraction else {}

    @property
    def reading(self) -> PairReading:
        """The pairs of each step."""
        prompts = (self.query_prompt, self.document_prompt)
        return PairReading(
            self.pairs, self.batch, prompts=prompts, heldout_fraction=self.heldout_fraction
        )

    def determinants(self, mask_seed: int) -> dict[str, Any]:
        """Return all settings; identities have the content of the pairs, not their path."""
        del mask_seed
        settings = {name: value for name, value in self.own_settings().items() if name != "pairs"}
        return {"name": self.objective, **settings}

    def supervise(
        self, batch: RowBatch, vocabulary: Vocabulary, *, mask_seed: int
    ) -> tuple[Supervision, ...]:
        """Let each text give a vector; labels are its number among the texts of the step."""
        del vocabulary, mask_seed
        assert isinstance(batch, PairBatch)  # noqa: S101 - a phase with pairs reads no other rows
        starts = batch.packed.spans[:, 0]
        # Positions have to ascend, and packing has moved texts. Labels keep the order of the pairs.
        order = np.argsort(starts)
        is_causal, loss = self.attention == "causal", self.loss_of(batch)
        return (Supervision(batch.packed, starts[order], order, is_causal, loss),)

    @abstractmethod
    def loss_of(self, batch: PairBatch) -> StatesLoss:
        """Return the loss over the vectors of a step."""


class Contrastive(PairObjective):
    """Queries find their documents, and other documents of the step are negatives."""

    objective: Literal["contrastive"]  # type: ignore[assignment]
    # 1 / 20: the scale of sentence-transformers' MultipleNegativesRankingLoss.
    temperature: PositiveFloat = 0.05
    """Cosine similarities are divided by it."""
    hard_negatives: NonNegativeInt | None = None
    """Most negatives of a pair that are read, the first ones; by default all."""
    symmetric: bool = False
    """Documents must also find their queries: the loss is the mean of both directions."""
    hardness: NonNegativeFloat = 0.0
    """Weight of hard negatives: this times its similarity is added to the logit of each
    negative of a query, without a gradient (arXiv:2503.04812, equation 5)."""
    matryoshka: tuple[PositiveInt, ...] = ()
    """Numbers of leading dimensions that must also serve as vectors; the loss is the mean over
    these and the whole vector (arXiv:2205.13147)."""

    @property
    def reading(self) -> PairReading:
        """The pairs of each step, with their negatives."""
        return replace(super().reading, hard_negatives=self.hard_negatives)

    def check_pairs(self, pairs: Pairs, *, width: int) -> None:
        """Check that vectors have as many dimensions as must serve."""
        del pairs
        if (widest := max(self.matryoshka, default=0)) > width:
            raise ConfigError(f"matryoshka: {widest} dimensions are more than the model's {width}")

    def loss_of(self, batch: PairBatch) -> StatesLoss:
        """Return InfoNCE."""
        from biphasic.objectives.loss import InfoNce  # noqa: PLC0415 - needs torch

        return InfoNce(
            pooling=self.pooling,
            num_queries=len(batch.queries),
            pairs=batch.pairs,
            is_positive=batch.is_positive,
            temperature=self.temperature,
            symmetric=self.symmetric,
            hardness=self.hardness,
            matryoshka=self.matryoshka,
        )


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
        if (size := pairs.vectors.shape[1]) != width:
            raise ConfigError(
                f"distill: the teacher's vectors have {size} dimensions, the model's {width}; "
                f"make them with 'pairs teach --width {width}'"
            )

    def loss_of(self, batch: PairBatch) -> StatesLoss:
        """Return the regression on the teacher's vectors."""
        from biphasic.objectives.loss import Distance  # noqa: PLC0415 - needs torch

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
        """Check that some pair that is trained on has a margin."""
        del width
        has_margin = (
            # Scores come with the pair, or follow from the vectors of its texts.
            bool(pairs.negatives(pair)[: self.hard_negatives])
            and (pairs.vectors is not None or bool(pairs.scores(pair)))
            for pair in chosen_pairs(pairs, self.heldout_fraction, "train").tolist()
        )
        if not any(has_margin):
            raise ConfigError(
                f"pairs: {self.pairs} has no negative with scores of a teacher to train on; add "
                "negatives with 'biphasic pairs mine', and then vectors with 'pairs teach'"
            )

    def supervise(
        self, batch: RowBatch, vocabulary: Vocabulary, *, mask_seed: int
    ) -> tuple[Supervision, ...]:
        """Let texts give vectors, unless by chance no pair of the step has a margin."""
        (part,) = super().supervise(batch, vocabulary, mask_seed=mask_seed)
        return (part if part.normaliser else part.without_labels(),)

    def loss_of(self, batch: PairBatch) -> StatesLoss:
        """Return the error of the margins."""
        from biphasic.objectives.loss import Margins  # noqa: PLC0415 - needs torch

        queries = len(batch.queries)
        return Margins(self.pooling, queries, batch.triples, batch.margins, self.similarity)
