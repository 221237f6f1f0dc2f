"""Matrix products on a CPU, each by the library that is fastest on this processor.

torch multiplies fp32 by MKL. On some AMD processors MKL uses half of their vector width (100
against 220 GFLOP/s on one core of an EPYC with AVX-512); on Intel's, oneDNN is the slow one for
weight gradients, since it copies both transposed factors first (a head's: 95 ms against 54 ms by
MKL). bf16 instructions do not mean fast products either: a Xeon without AMX multiplies bf16 at half
of its fp32 speed, and AVX2 has none at all (0.3 to 3 GFLOP/s). `products.py` measures; bf16 factors
may be multiplied in fp32 and the result rounded to bf16, as the kernels do, in another order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from biphasic.model.compute.products import products, widened


def speed_up_linear_layers(model: nn.Module) -> None:
    """Make a model's linear layers compute by the fastest libraries."""
    # Weights, names and precision do not change; sums are taken in another order.
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = _FastLinear


class _FastLinear(nn.Linear):
    """`nn.Linear` whose products on a CPU are computed by the fastest libraries."""

    def forward(self, input: Tensor) -> Tensor:
        if not _is_ours(input):
            return super().forward(input)
        return _Product.apply(input, self.weight, self.bias)


class _Product(torch.autograd.Function):
    """`input @ weight.T + bias`, and its gradients."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(input, weight)
        output = product(input.reshape(-1, weight.shape[1]), weight, bias)
        # A result that is a view could not be changed in place (Longformer does).
        return torch.ops.aten._unsafe_view(output, (*input.shape[:-1], weight.shape[0]))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        by_token = gradients[0].reshape(-1, weight.shape[0])  # (tokens, num_outputs)
        inputs = input.reshape(-1, weight.shape[1])  # (tokens, num_inputs)
        needs_input, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            input_gradient(by_token, weight).view(input.shape) if needs_input else None,
            weight_gradient(by_token, inputs) if needs_weight else None,
            by_token.sum(0) if needs_bias else None,
        )


def product(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `input @ weight.T + bias`, [num_tokens, num_outputs], without autograd."""
    if not _is_ours(input):
        return nn.functional.linear(input, weight, bias)
    return widened(products().forward, input, weight, bias)


def input_gradient(gradient: Tensor, weight: Tensor) -> Tensor:
    """Return `gradient @ weight`, [num_tokens, num_inputs], without autograd."""
    if not _is_ours(gradient):
        return gradient @ weight
    return widened(products().input_gradient, gradient, weight.T)


def add_input_gradient(total: Tensor | None, gradient: Tensor, weight: Tensor) -> Tensor:
    """Return `total + gradient @ weight`; `total` may change in place."""
    if total is None:
        return input_gradient(gradient, weight)
    is_fp32 = gradient.dtype == torch.float32
    if is_fp32 and _is_ours(gradient) and products().input_gradient == "mkl":
        return total.addmm_(gradient, weight)
    return total.add_(input_gradient(gradient, weight))


def weight_gradient(gradient: Tensor, input: Tensor) -> Tensor:
    """Return `gradient.T @ input`, [num_outputs, num_inputs], without autograd."""
    if not _is_ours(gradient):
        return gradient.T @ input
    return widened(products().weight_gradient, gradient.T, input.T)


def widens_bf16(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether this is bf16 on a processor that multiplies fp32 faster."""
    return dtype == torch.bfloat16 and device.type == "cpu" and _widens_bf16()


@torch.compiler.assume_constant_result  # torch.compile traces no cached functions
def _widens_bf16() -> bool:
    return products().widens_bf16


def _is_ours(factor: Tensor) -> bool:
    # torch.compile chooses the library itself.
    if torch.compiler.is_compiling() or factor.device.type != "cpu":
        return False
    return factor.dtype == torch.float32 or widens_bf16(factor.device, factor.dtype)
