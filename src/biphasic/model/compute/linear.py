"""Faster matrix products on a CPU: oneDNN for fp32, and for bf16 without hardware support.

torch uses MKL for fp32 products. On non-Intel processors, MKL uses only half of their vector width:
100 against 220 GFLOP/s on one core of an AMD EPYC with AVX-512. With oneDNN, fine-tuning MiniLM
takes two thirds of the time, and scoring little more than half.

oneDNN has bf16 kernels for AVX-512 only. On other processors torch falls back to plain loops: 0.3
to 3 GFLOP/s on one core with AVX2, where fp32 reaches 65. There bf16 factors are multiplied in fp32
and the result is rounded to bf16, as the kernels do, in another order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

# A constant, since torch.compile traces no cached functions. False without oneDNN.
_HAS_BF16_KERNELS = (
    not torch.backends.mkldnn.is_available() or torch.ops.mkldnn._is_mkldnn_bf16_supported()
)


def speed_up_linear_layers(model: nn.Module) -> None:
    """Make a model's linear layers use oneDNN where it is faster.

    Weights, names and precision do not change; sums are taken in another order. Without oneDNN this
    does nothing.
    """
    if not torch.backends.mkldnn.is_available():
        return
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = _OneDnnLinear


class _OneDnnLinear(nn.Linear):
    """`nn.Linear` that uses oneDNN's fp32 product on a CPU if it is faster."""

    def forward(self, input: Tensor) -> Tensor:
        if not _is_faster(input):
            return super().forward(input)
        return _Product.apply(input, self.weight, self.bias)


class _Product(torch.autograd.Function):
    """`input @ weight.T + bias`, and its gradients."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(input, weight)
        output = _by_onednn(input, weight, bias)
        # oneDNN's result is a view, which autograd forbids changing in place (Longformer does).
        return torch.ops.aten._unsafe_view(output, output.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        (gradient,) = gradients
        by_token = gradient.reshape(-1, weight.shape[0])  # (tokens, num_outputs)
        needs_input, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            _by_onednn(gradient, weight.T) if needs_input else None,
            _by_onednn(by_token.T, input.reshape(-1, weight.shape[1]).T) if needs_weight else None,
            by_token.sum(0) if needs_bias else None,
        )


def product(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `left @ right.T + bias` with the faster library, without autograd.

    `left` is [num_rows, width], `right` [num_columns, width] and `bias` [num_columns], of the same
    precision.
    """
    if _is_faster(left) and torch.backends.mkldnn.is_available():
        return _by_onednn(left, right, bias)
    return left @ right.T if bias is None else torch.addmm(bias, left, right.T)


def lacks_bf16(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether this is bf16 on a processor without bf16 instructions."""
    return dtype == torch.bfloat16 and device.type == "cpu" and not _HAS_BF16_KERNELS


def _is_faster(input: Tensor) -> bool:
    # torch.compile chooses the library itself.
    if torch.compiler.is_compiling() or input.device.type != "cpu":
        return False
    return input.dtype == torch.float32 or lacks_bf16(input.device, input.dtype)


def _by_onednn(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    wide_bias = None if bias is None else bias.float()
    product = torch.ops.mkldnn._linear_pointwise(
        input.float(), weight.float(), wide_bias, "none", [], ""
    )
    return product.to(input.dtype)
