"""Cross-entropy of the language-model head, summed, on supervised positions only.

`tokens x vocabulary` logits never exist: hidden states are taken in groups, and the gradients of a
group are computed while its logits are at hand, so the backward pass only scales them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from biphasic.model.linear import product

GROUP_LOGITS = 1 << 26
"""Logits held at once: 128 MiB in bf16. Matrix products over few tokens are slow, and each group
adds to the weight's whole gradient: at 131,072 entries four groups take a quarter of the time that
groups of 16 tokens do."""
BLOCK_LOGITS = 1 << 18
"""Logits taken in fp32 at once on a CPU: 1 MiB, which stays in a core's cache."""


def summed_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of the cross-entropies of `hidden @ weight.T` against `labels`.

    Args:
        hidden: [num_supervised, hidden_size], in any floating precision.
        weight: [vocab_size, hidden_size], the language-model head.
        labels: int64 [num_supervised].

    Returns:
        A scalar in fp32, in nats. Divide once, by the supervised tokens of the global batch.
    """
    return _GroupedCrossEntropy.apply(hidden, weight, labels)  # type: ignore[return-value]


class _GroupedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        needs_gradient = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        hidden_gradient = torch.empty_like(hidden) if needs_gradient else None
        weight_gradient: Tensor | None = None
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        group = max(GROUP_LOGITS // weight.shape[0], 1)
        for start in range(0, len(labels), group):
            part = hidden[start : start + group]
            logits = product(part, weight)
            total += _loss_and_delta(logits, labels[start : start + group, None])
            if hidden_gradient is None:
                continue
            hidden_gradient[start : start + group] = product(logits, weight.T)
            share = product(logits.T, part.T)
            weight_gradient = share if weight_gradient is None else weight_gradient.float() + share
        if hidden_gradient is not None and weight_gradient is not None:
            ctx.save_for_backward(hidden_gradient, weight_gradient.to(weight.dtype))
        return total

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (scale,) = gradients
        hidden_gradient, weight_gradient = ctx.saved_tensors  # type: ignore[attr-defined]
        return hidden_gradient * scale, weight_gradient * scale, None


def _loss_and_delta(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum the losses of some tokens; overwrite their logits by the gradient: softmax - one-hot."""
    total = torch.zeros((), dtype=torch.float32, device=logits.device)
    on_cpu = logits.device.type == "cpu"
    rows = max(BLOCK_LOGITS // logits.shape[1], 1) if on_cpu else len(logits)
    for block, target in zip(logits.split(rows), targets.split(rows), strict=True):
        exact = block.float()
        right = exact.gather(1, target)
        largest = exact.amax(-1, keepdim=True)
        chances = exact.softmax(-1)
        # The largest logit's chance is 1 / normaliser: one exponential per logit is enough.
        total += (largest - chances.amax(-1, keepdim=True).log() - right).sum()
        block.copy_(chances.scatter_add_(1, target, chances.new_full(target.shape, -1.0)))
    return total
