"""RMSNorm with its own backward pass, a quarter faster on a CPU and equal to the last bit.

autograd allocates a tensor for each of its six steps. Here they take the same order, in place; only
products of two factors are swapped, which changes no bit. On a Xeon, 2,048 tokens of width 192 take
1.7 to 2.0 ms forward and backward, against 2.4 to 2.7 ms. Training may take a shorter one, which
rounds differently (`kernels.py`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from biphasic.model.compute.kernels import uses_cpu_kernels


def speed_up_norms(model: nn.Module) -> None:
    """Make a model's norms that compute what Llama's do use this backward pass."""
    for module in model.modules():
        if _is_llamas(type(module)):
            module.__class__ = _FastRMSNorm


def _is_llamas(kind: type[nn.Module]) -> bool:
    """Return whether a class has the code of Llama's norm: many families have a copy of it."""
    code, llamas = getattr(kind.forward, "__code__", None), LlamaRMSNorm.forward.__code__
    parts = ("co_code", "co_names", "co_consts")
    return code is not None and all(getattr(code, p) == getattr(llamas, p) for p in parts)


class _FastRMSNorm(LlamaRMSNorm):
    def forward(self, hidden_states: Tensor) -> Tensor:
        is_fp32 = hidden_states.dtype == self.weight.dtype == torch.float32
        if not is_fp32 or hidden_states.device.type != "cpu" or torch.compiler.is_compiling():
            return super().forward(hidden_states)
        if uses_cpu_kernels(hidden_states):
            return _ShortNorm.apply(hidden_states, self.weight, self.variance_epsilon)
        return _Norm.apply(hidden_states, hidden_states, self.weight, self.variance_epsilon)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, again: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        # Given twice, so that autograd adds the gradients of both uses one after the other to that
        # of the residual stream, in the order in which it does so without this function.
        del again
        factors = inputs.pow(2).mean(-1, keepdim=True).add_(epsilon).rsqrt_()
        normed = inputs * factors
        ctx.save_for_backward(inputs, weight, factors, normed)
        return weight * normed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        inputs, weight, factors, normed = ctx.saved_tensors
        products = gradient * normed
        of_weight = products.sum(tuple(range(inputs.ndim - 1)))
        of_normed = gradient * weight
        of_factors = torch.mul(of_normed, inputs, out=products).sum(-1, keepdim=True)
        of_squares = (of_factors * -0.5) * factors.pow(3) / inputs.shape[-1]
        torch.mul(inputs, of_squares * 2, out=products)
        return of_normed.mul_(factors), products, of_weight, None


class _ShortNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        lengths = torch.linalg.vector_norm(inputs, dim=-1, keepdim=True)
        factors = lengths.square_().div_(inputs.shape[-1]).add_(epsilon).rsqrt_()
        ctx.save_for_backward(inputs, weight, factors)
        return (inputs * factors).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        inputs, weight, factors = ctx.saved_tensors
        normed = inputs * factors
        products = gradient * normed
        of_weight = products.sum(tuple(range(inputs.ndim - 1)))
        shares = (products @ weight).div_(-inputs.shape[-1])[..., None]
        of_inputs = (gradient * weight).addcmul_(normed, shares).mul_(factors)
        return of_inputs, of_weight, None
