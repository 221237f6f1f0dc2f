"""Losses, summed: cross-entropy of the language-model head, and losses over the vectors of texts.

The full `tokens x vocabulary` logits are never stored: hidden states are processed in groups, and
the gradients of a group are computed along with its logits, so the backward pass only scales them.
Vectors have InfoNCE, and the distance to a teacher's vectors or margins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import FunctionCtx

from biphasic.errors import ConfigError
from biphasic.model.compute.forward import Pooling, pooled
from biphasic.model.cpu.products import input_gradient, product, weight_gradient
from biphasic.model.shape import GROUP_LOGITS
from biphasic.objectives.supervision import PerLabel, StatesLoss

BLOCK_LOGITS = 1 << 18
"""Logits processed in fp32 at once on a CPU: 1 MiB, which fits in a core's cache."""


def summed_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    weights: Tensor | None = None,
    per_label: PerLabel | None = None,
    values: Tensor | None = None,
) -> Tensor:
    """Return the sum of the cross-entropies of `hidden @ weight.T + bias`, in fp32 and nats."""
    # Divide once, by the supervised tokens of the global batch. A softcap makes the logits
    # `softcap * tanh(logits / softcap)`, as in Gemma 2 (arXiv:2408.00118, section 2). `weights` are
    # fp32 [num_supervised]; `per_label` replaces the cross-entropy, for some labels at a time.
    return _GroupedCrossEntropy.apply(  # type: ignore[return-value]
        hidden, weight, bias, labels, softcap, weights, per_label, values
    )


class _GroupedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        softcap: float | None,
        weights: Tensor | None,
        per_label: PerLabel | None,
        values: Tensor | None,
    ) -> Tensor:
        # Gradients are computed here, while the logits of a group exist; `backward` scales them.
        needs_hidden, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        hidden_gradient = torch.empty_like(hidden) if needs_hidden else None
        weight_sum = _Sum(weight) if needs_weight else None
        bias_sum = _Sum(bias) if bias is not None and needs_bias else None
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        group = max(GROUP_LOGITS // weight.shape[0], 1)
        for start in range(0, len(labels), group):
            part = hidden[start : start + group]
            logits = product(part, weight, bias)
            factors = None if weights is None else weights[start : start + group, None]
            targets = labels[start : start + group, None]
            # The logits become their own gradient in place: no second array is as large.
            if per_label is None:
                total += _loss_and_delta(logits, targets, softcap, factors)
            else:
                part_values = None if values is None else values[start : start + group]
                own = _bound(per_label, part_values)
                total += _own_loss_and_delta(logits, targets, softcap, factors, own)
            if hidden_gradient is not None:
                hidden_gradient[start : start + group] = input_gradient(logits, weight)
            if weight_sum is not None:
                weight_sum.add(weight_gradient(logits, part))
            if bias_sum is not None:
                bias_sum.add(logits.sum(0, dtype=torch.float32))
        ctx.save_for_backward(
            hidden_gradient,
            None if weight_sum is None else weight_sum.total(),
            None if bias_sum is None else bias_sum.total(),
        )
        return total

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (scale,) = gradients
        saved = ctx.saved_tensors  # type: ignore[attr-defined]
        # The loss is a scalar, so the gradients of `forward` need a factor alone.
        scaled = [None if gradient is None else gradient * scale for gradient in saved]
        return *scaled, None, None, None, None, None


class _Sum:
    """A parameter's gradient, summed over groups in fp32, returned in the parameter's precision."""

    def __init__(self, parameter: Tensor) -> None:
        self._parameter = parameter
        self._total: Tensor | None = None

    def add(self, share: Tensor) -> None:
        # A single group, the usual case, needs no copy in fp32.
        self._total = share if self._total is None else self._total.float() + share

    def total(self) -> Tensor:
        if self._total is None:
            # A pass without labels has no group, and its ranks sum this gradient with the others.
            return torch.zeros_like(self._parameter)
        return self._total.to(self._parameter.dtype)


def _loss_and_delta(
    logits: Tensor, targets: Tensor, softcap: float | None, weights: Tensor | None
) -> Tensor:
    """Sum the losses of some tokens, and overwrite their logits with the gradient."""
    total = torch.zeros((), dtype=torch.float32, device=logits.device)
    on_cpu = logits.device.type == "cpu"
    rows = max(BLOCK_LOGITS // logits.shape[1], 1) if on_cpu else len(logits)
    blocks = zip(logits.split(rows), targets.split(rows), strict=True)
    for number, (block, target) in enumerate(blocks):
        exact, slope = _capped(block.float(), softcap)
        right = exact.gather(1, target)
        largest = exact.amax(-1, keepdim=True)
        # In place on a CPU, whose kernel reads a row's logits before it writes them; other devices'
        # kernels may not.
        chances = torch.softmax(exact, -1, out=exact if on_cpu else None)
        # The largest logit's probability is 1 / normaliser: one exponential per logit is enough.
        losses = largest - chances.amax(-1, keepdim=True).log() - right
        # The gradient of the cross-entropy by the logits: their softmax, minus 1 at the label.
        delta = chances.scatter_add_(1, target, chances.new_full(target.shape, -1.0))
        if weights is not None:
            factors = weights[number * rows : (number + 1) * rows]
            losses, delta = losses * factors, delta.mul_(factors)
        total += losses.sum()
        block.copy_(delta if slope is None else delta * slope)
    return total


def _bound(per_label: PerLabel, values: Tensor | None) -> PerLabel:
    """Return a loss of logits and labels alone."""
    if values is None:
        return per_label
    return lambda logits, labels: per_label(logits, labels, values)


def _own_loss_and_delta(
    logits: Tensor,
    targets: Tensor,
    softcap: float | None,
    weights: Tensor | None,
    per_label: PerLabel,
) -> Tensor:
    """Do the same for another loss than cross-entropy."""
    # Autograd, which is off within a function of its own, differentiates from the logits on.
    with torch.enable_grad():
        exact = logits.detach().float().requires_grad_()
        losses = per_label(_capped(exact, softcap)[0], targets[:, 0])
        if losses.shape != targets.shape[:1] or not losses.requires_grad:
            raise ConfigError(
                f"per_label returns {list(losses.shape)} for {len(targets)} labels; it must return "
                f"a loss with a gradient for each, [{len(targets)}]"
            )
        loss = losses.sum() if weights is None else (losses * weights[:, 0]).sum()
    (gradient,) = torch.autograd.grad(loss, exact)
    logits.copy_(gradient)
    return loss.detach()


def _capped(logits: Tensor, softcap: float | None) -> tuple[Tensor, Tensor | None]:
    """Return capped logits, and the slope of the cap at each."""
    if softcap is None:
        return logits, None
    shares = (logits / softcap).tanh()
    return softcap * shares, 1 - shares.square()


@dataclass(frozen=True)
class _TextsLoss(StatesLoss):
    """A loss of a vector for each text."""

    pooling: Pooling

    def vectors(self, hidden: Tensor, positions: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Return a vector for each text of a pass."""
        borders = cu_seqlens.long()
        ends = borders[torch.searchsorted(borders, positions, right=True)]
        return pooled(hidden, torch.stack([positions, ends], dim=1), pooling=self.pooling)


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
        unit = F.normalize(vectors, dim=-1)  # the first dimensions of a unit vector are none
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
            # A negative weighs exp(hardness * similarity); the weight itself has no gradient.
            logits = logits + (hardness * chosen.detach()).masked_fill(is_target, 0.0)
        # Other answers to the query are no negatives.
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
