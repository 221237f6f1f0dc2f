"""Cross-entropy of the language-model head, summed, on supervised positions only.

`tokens x vocabulary` logits never exist: hidden states are taken in chunks, and the gradients of a
chunk are computed while its logits are at hand, so the backward pass only scales them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

CHUNK_LOGITS = 1 << 21
"""Logits held at once: 8 MiB in fp32, which stays within a core's reach of cache."""


def summed_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of the cross-entropies of `hidden @ weight.T` against `labels`.

    Args:
        hidden: [num_supervised, hidden_size], in any floating precision.
        weight: [vocab_size, hidden_size], the language-model head.
        labels: int64 [num_supervised].

    Returns:
        A scalar in fp32, in nats. Divide once, by the supervised tokens of the global batch.
    """
    return _ChunkedCrossEntropy.apply(hidden, weight, labels)  # type: ignore[return-value]


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        needs_gradient = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        hidden_gradient = torch.empty_like(hidden) if needs_gradient else None
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32) if needs_gradient else None
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        chunk = max(CHUNK_LOGITS // weight.shape[0], 1)
        for start in range(0, len(labels), chunk):
            part, target = hidden[start : start + chunk], labels[start : start + chunk, None]
            logits = (part @ weight.T).float()
            largest = logits.amax(-1, keepdim=True)
            right = logits.gather(1, target)
            # One exponential per logit serves both the normaliser and the softmax.
            normalizer = logits.sub_(largest).exp_().sum(-1, keepdim=True)
            total += (normalizer.log() + largest - right).sum()
            if hidden_gradient is None or weight_gradient is None:
                continue
            # d loss / d logits = softmax - one-hot, written over the logits.
            logits.mul_(normalizer.reciprocal())
            logits.scatter_add_(1, target, logits.new_full(target.shape, -1.0))
            delta = logits.to(weight.dtype)
            torch.mm(delta, weight, out=hidden_gradient[start : start + chunk])
            weight_gradient += delta.T @ part
        if hidden_gradient is not None and weight_gradient is not None:
            ctx.save_for_backward(hidden_gradient, weight_gradient.to(weight.dtype))
        return total

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (scale,) = gradients
        hidden_gradient, weight_gradient = ctx.saved_tensors  # type: ignore[attr-defined]
        return hidden_gradient * scale, weight_gradient * scale, None
