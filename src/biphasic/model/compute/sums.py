"""Gradients that are sums over tokens, in fp32 where torch sums them in bf16.

On a CPU, torch adds up the bf16 gradients of a LayerNorm's weights and of an embedding one token
after the other in bf16. A sum that is 256 times as large as what is added no longer grows: with
16,384 tokens in a pass, a gradient had 0.58 of its size. Outputs, and gradients of inputs, are
torch's own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

# Tables with few rows, such as those of token types, have long sums. Those of words stay in fp32
# (`training/step/optimizer.py`).
_FEW_ROWS = 64


def sum_in_fp32(model: nn.Module) -> None:
    """Make a model's LayerNorms and small embeddings sum the gradients of their weights in fp32."""
    for module in model.modules():
        if type(module) is nn.LayerNorm and module.weight is not None:
            module.__class__ = _LayerNorm
        elif type(module) is nn.Embedding and module.num_embeddings <= _FEW_ROWS:
            module.__class__ = _Embedding


def _is_ours(inputs: Tensor) -> bool:
    is_on_cpu = inputs.dtype == torch.bfloat16 and inputs.device.type == "cpu"
    return is_on_cpu and torch.is_grad_enabled() and not torch.compiler.is_compiling()


class _LayerNorm(nn.LayerNorm):
    def forward(self, input: Tensor) -> Tensor:
        if not _is_ours(input):
            return super().forward(input)
        return _Normed.apply(input, self.weight, self.bias, self.eps)


class _Normed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float
    ) -> Tensor:
        output, mean, factor = torch.native_layer_norm(inputs, weight.shape, weight, bias, epsilon)
        ctx.save_for_backward(inputs, weight, bias, mean, factor)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        inputs, weight, bias, mean, factor = ctx.saved_tensors
        needs_input, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        of_input = of_weight = of_bias = None
        if needs_input:
            only_input = [True, False, False]
            of_input, *_ = torch.ops.aten.native_layer_norm_backward(
                gradient, inputs, weight.shape, mean, factor, weight, bias, only_input
            )
        tokens = tuple(range(inputs.ndim - weight.ndim))
        if needs_weight:
            normed = inputs.float().sub_(mean).mul_(factor)
            of_weight = normed.mul_(gradient).sum(tokens).to(weight.dtype)
        if bias is not None and needs_bias:
            of_bias = gradient.sum(tokens, dtype=torch.float32).to(bias.dtype)
        return of_input, of_weight, of_bias, None


class _Embedding(nn.Embedding):
    def forward(self, input: Tensor) -> Tensor:
        if self.padding_idx is not None or not _is_ours(self.weight):
            return super().forward(input)
        return _Looked.apply(input, self.weight)


class _Looked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return nn.functional.embedding(rows, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        sums = weight.new_zeros(weight.shape, dtype=torch.float32)
        by_token = gradients[0].reshape(-1, weight.shape[1]).float()
        return None, sums.index_add_(0, rows.reshape(-1), by_token).to(weight.dtype)
