"""Losses over the vectors of texts: InfoNCE, and the distance to a teacher's vectors or margins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray
from torch import Tensor

from biphasic.model.compute.forward import Pooling, pooled
from biphasic.objectives.supervision import StatesLoss


@dataclass(frozen=True)
class _TextsLoss(StatesLoss):
    """A loss of a vector for each text."""

    pooling: Pooling

    def vectors(self, hidden: Tensor, positions: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Return a vector for each text of a pass."""
        return pooled(hidden, positions, cu_seqlens, pooling=self.pooling)


@dataclass(frozen=True)
class InfoNce(_TextsLoss):
    """Cross-entropy of each query's document among the documents of the step.

    Attributes:
        num_queries: Vectors of queries; those of documents follow.
        pairs: int64 [num_pairs, 2]; query and positive, as indices of the two.
        is_positive: bool [num_queries, num_documents]; pairs, which are never negatives.
        temperature, symmetric, hardness, matryoshka: As in `Contrastive`.
    """

    num_queries: int
    pairs: NDArray[np.int64]
    is_positive: NDArray[np.bool_]
    temperature: float
    symmetric: bool
    hardness: float
    matryoshka: tuple[int, ...]
    couples: bool = True

    @property
    def normaliser(self) -> int:
        """Number of pairs."""
        return len(self.pairs)

    def summed(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """Return the loss over the vectors of all texts, in order, summed over pairs."""
        del labels
        whole = vectors.shape[1]
        used = (*(width for width in self.matryoshka if width < whole), whole)
        return torch.stack([self._at_width(vectors[:, :width]) for width in used]).mean()

    def _at_width(self, vectors: Tensor) -> Tensor:
        unit = F.normalize(vectors, dim=-1)
        similarities = unit[: self.num_queries] @ unit[self.num_queries :].T
        queries, positives = torch.from_numpy(self.pairs.T).to(vectors.device)
        is_positive = torch.from_numpy(self.is_positive).to(vectors.device)
        loss = self._direction(
            similarities, is_positive, queries, positives, hardness=self.hardness
        )
        if self.symmetric:
            back = self._direction(similarities.T, is_positive.T, positives, queries, hardness=0.0)
            loss = (loss + back) / 2
        return loss

    def _direction(
        self,
        similarities: Tensor,
        is_positive: Tensor,
        rows: Tensor,
        targets: Tensor,
        *,
        hardness: float,
    ) -> Tensor:
        """Sum the cross-entropies of the targets in some rows of similarities."""
        chosen, others = similarities[rows], is_positive[rows]
        columns = torch.arange(chosen.shape[1], device=chosen.device)
        is_target = columns == targets[:, None]
        logits = chosen / self.temperature
        if hardness:
            logits = logits + (hardness * chosen.detach()).masked_fill(is_target, 0.0)
        logits = logits.masked_fill(others & ~is_target, -torch.inf)
        return F.cross_entropy(logits, targets, reduction="sum")


@dataclass(frozen=True)
class Distance(_TextsLoss):
    """Squared distance of each unit vector to its target.

    Attributes:
        targets: float32 [num_texts, width]; of length 1.
    """

    targets: NDArray[np.float32]
    couples: bool = False

    @property
    def normaliser(self) -> int:
        """Number of texts."""
        return len(self.targets)

    def summed(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """Return the summed squared distances of a pass."""
        targets = torch.from_numpy(self.targets).to(vectors)[labels]
        return (F.normalize(vectors, dim=-1) - targets).square().sum()


@dataclass(frozen=True)
class Margins(_TextsLoss):
    """Squared error of the margins of documents over negatives.

    Attributes:
        num_queries: Vectors of queries; those of documents follow.
        triples: int64 [num_margins, 3]; query, document and negative, as indices of the two.
        margins: float32 [num_margins]; a teacher's.
        similarity: As in `MarginMse`.
    """

    num_queries: int
    triples: NDArray[np.int64]
    margins: NDArray[np.float32]
    similarity: Literal["cosine", "dot"]
    couples: bool = True

    @property
    def normaliser(self) -> int:
        """Number of margins."""
        return len(self.margins)

    def summed(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """Return the summed squared errors, over the vectors of all texts in order."""
        del labels
        if self.similarity == "cosine":
            vectors = F.normalize(vectors, dim=-1)
        queries, documents = vectors[: self.num_queries], vectors[self.num_queries :]
        query, positive, negative = torch.from_numpy(self.triples.T).to(vectors.device)
        own = (queries[query] * (documents[positive] - documents[negative])).sum(-1)
        return (own - torch.from_numpy(self.margins).to(vectors)).square().sum()
