"""Cross-entropy of the language-model head, summed, on supervised positions only.

The full `tokens x vocabulary` logits are never stored: hidden states are processed in groups, and
the gradients of a group are computed along with its logits, so the backward pass only scales them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from biphasic.model.compute.linear import input_gradient, product, weight_gradient
from biphasic.model.shape import GROUP_LOGITS

BLOCK_LOGITS = 1 << 18
"""Logits processed in fp32 at once on a CPU: 1 MiB, which fits in a core's cache."""


def summed_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Return the sum of the cross-entropies of `hidden @ weight.T + bias` against `labels`.

    Gradients are computed only for inputs that require them.

    Args:
        hidden: [num_supervised, hidden_size], in any floating precision.
        weight: [vocab_size, hidden_size], the language-model head, in the same precision.
        labels: int64 [num_supervised].
        bias: [vocab_size], in the same precision, or None.
        softcap: Logits become `softcap * tanh(logits / softcap)`, as in Gemma 2
            (arXiv:2408.00118, section 2); None disables the cap.

    Returns:
        A scalar in fp32, in nats. Divide once, by the supervised tokens of the global batch.
    """
    return _GroupedCrossEntropy.apply(hidden, weight, bias, labels, softcap)  # type: ignore[return-value]


class _GroupedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        softcap: float | None,
    ) -> Tensor:
        needs_hidden, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        hidden_gradient = torch.empty_like(hidden) if needs_hidden else None
        weight_sum = _Sum(weight) if needs_weight else None
        bias_sum = _Sum(bias) if bias is not None and needs_bias else None
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        group = max(GROUP_LOGITS // weight.shape[0], 1)
        for start in range(0, len(labels), group):
            part = hidden[start : start + group]
            logits = product(part, weight, bias)
            total += _loss_and_delta(logits, labels[start : start + group, None], softcap)
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
        scaled = [None if gradient is None else gradient * scale for gradient in saved]
        return *scaled, None, None


class _Sum:
    """A parameter's gradient, summed over groups in fp32, returned in the parameter's precision."""

    def __init__(self, parameter: Tensor) -> None:
        self._parameter = parameter
        self._total: Tensor | None = None

    def add(self, share: Tensor) -> None:
        self._total = share if self._total is None else self._total.float() + share

    def total(self) -> Tensor:
        if self._total is None:
            return torch.zeros_like(self._parameter)
        return self._total.to(self._parameter.dtype)


def _loss_and_delta(logits: Tensor, targets: Tensor, softcap: float | None) -> Tensor:
    """Sum the losses of some tokens, and overwrite their logits with the gradient."""
    total = torch.zeros((), dtype=torch.float32, device=logits.device)
    on_cpu = logits.device.type == "cpu"
    rows = max(BLOCK_LOGITS // logits.shape[1], 1) if on_cpu else len(logits)
    for block, target in zip(logits.split(rows), targets.split(rows), strict=True):
        exact, slope = _capped(block.float(), softcap)
        right = exact.gather(1, target)
        largest = exact.amax(-1, keepdim=True)
        chances = exact.softmax(-1)
        # The largest logit's probability is 1 / normaliser: one exponential per logit is enough.
        total += (largest - chances.amax(-1, keepdim=True).log() - right).sum()
        delta = chances.scatter_add_(1, target, chances.new_full(target.shape, -1.0))
        block.copy_(delta if slope is None else delta * slope)
    return total


def _capped(logits: Tensor, softcap: float | None) -> tuple[Tensor, Tensor | None]:
    """Return capped logits, and the slope of the cap at each."""
    if softcap is None:
        return logits, None
    shares = (logits / softcap).tanh()
    return softcap * shares, 1 - shares.square()
