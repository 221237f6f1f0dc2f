"""EuroBERT's layers in fp32 on a CPU, with fewer passes over memory; see `kernels.py`.

Rotary embeddings take three passes over queries and keys instead of five. Gradients of a layer's
input, through products that share it, are summed by the products themselves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.eurobert.modeling_eurobert import EuroBertAttention, EuroBertMLP

from biphasic.model.compute.kernels import uses_cpu_kernels
from biphasic.model.compute.linear import add_input_gradient, product, weight_gradient


def speed_up_eurobert(model: nn.Module) -> None:
    """Make a model's EuroBERT layers use our kernels; other models do not change."""
    for module in model.modules():
        if type(module) is EuroBertAttention:
            module.__class__ = _FastEuroBertAttention
        elif type(module) is EuroBertMLP:
            module.__class__ = _FastEuroBertMLP


class _FastEuroBertAttention(EuroBertAttention):
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if not _is_ours(hidden_states) or past_key_values is not None:
            return super().forward(
                hidden_states, position_embeddings, attention_mask, past_key_values, **options
            )
        cosines, sines = (part.unsqueeze(1) for part in position_embeddings)
        query, key, value = (
            states.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for states in _products(hidden_states, self.q_proj, self.k_proj, self.v_proj)
        )
        attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        attended, weights = attend(
            self,
            _Rotated.apply(query, cosines, sines),
            _Rotated.apply(key, cosines, sines),
            value,
            attention_mask,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            **options,
        )
        return self.o_proj(attended.flatten(2)), weights


class _FastEuroBertMLP(EuroBertMLP):
    def forward(self, x: Tensor) -> Tensor:
        if not _is_ours(x):
            return super().forward(x)
        gate, up = _products(x, self.gate_proj, self.up_proj)
        return self.down_proj(self.act_fn(gate) * up)


def _is_ours(states: Tensor) -> bool:
    return states.dtype == torch.float32 and uses_cpu_kernels(states)


def _products(input: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    """Return what each linear layer makes of the same input."""
    if any(layer.bias is not None for layer in layers):
        return tuple(layer(input) for layer in layers)
    return _Products.apply(input, *(layer.weight for layer in layers))


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(input, *weights)
        inputs = input.flatten(0, -2)
        return tuple(
            # As in `linear.py`, results are no views.
            torch.ops.aten._unsafe_view(product(inputs, weight), (*input.shape[:-1], len(weight)))
            for weight in weights
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        input, *weights = ctx.saved_tensors
        needs_input, *need_weight = ctx.needs_input_grad
        inputs = input.flatten(0, -2)
        by_token = [gradient.flatten(0, -2) for gradient in gradients]
        of_input = None
        if needs_input:
            for gradient, weight in zip(by_token, weights, strict=True):
                of_input = add_input_gradient(of_input, gradient, weight)
        of_weights = (
            weight_gradient(gradient, inputs) if needs else None
            for gradient, needs in zip(by_token, need_weight, strict=True)
        )
        return None if of_input is None else of_input.view(input.shape), *of_weights


class _Rotated(torch.autograd.Function):
    """Rotary embeddings of queries or keys."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        ctx.save_for_backward(cosines, sines)
        half = states.shape[-1] // 2
        rotated = states * cosines
        rotated[..., :half].addcmul_(states[..., half:], sines[..., :half], value=-1)
        rotated[..., half:].addcmul_(states[..., :half], sines[..., half:])
        return rotated

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        cosines, sines = ctx.saved_tensors
        half = gradient.shape[-1] // 2
        total = gradient * cosines
        total[..., :half].addcmul_(gradient[..., half:], sines[..., half:])
        total[..., half:].addcmul_(gradient[..., :half], sines[..., :half], value=-1)
        return total, None, None
