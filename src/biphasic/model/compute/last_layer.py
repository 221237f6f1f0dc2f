"""The last layer of a model, computed for those tokens only whose states are read.

After the last layer nothing reads the states of tokens without a label. So its products that treat
each token by itself, which are the query, the attention's output and the MLP, leave these tokens
out: with MLM at 40 % that is half of a layer. The states that are read, and all gradients, are the
same up to the rounding of sums.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaMLP

from biphasic.model.compute.layers import READ_TOKENS, transformer_layers
from biphasic.model.compute.norm import has_code_of

_PRODUCTS = ("self_attn.q_proj", "self_attn.o_proj", "mlp")


def shorten_last_layer(model: PreTrainedModel) -> None:
    """Let the last layer of a model like Llama leave out tokens whose states are not read."""
    *_, (_, layer) = transformer_layers(model)
    modules = dict(layer.named_modules())
    if not modules.keys() >= set(_PRODUCTS) or not has_code_of(type(modules["mlp"]), LlamaMLP):
        return
    for name in _PRODUCTS:
        kind = type(modules[name])
        modules[name].__class__ = type(kind.__name__, (_Short, kind), {})
    # Before each forward pass of the layer: also before that which recomputes its activations.
    layer.register_forward_pre_hook(_hand_on, with_kwargs=True)


def _hand_on(layer: nn.Module, _: tuple[Any, ...], options: dict[str, Any]) -> None:
    for name in _PRODUCTS:
        cast(_Short, layer.get_submodule(name)).read_tokens = options.get(READ_TOKENS)


class _Short(nn.Module):
    """A module that treats each token by itself; its output is zero for tokens left out."""

    read_tokens: Tensor | None = None

    def forward(self, states: Tensor) -> Tensor:
        if self.read_tokens is None:
            return super().forward(states)
        flat = states.flatten(0, -2)
        outputs = super().forward(_Pick.apply(flat, self.read_tokens))
        return _Spread.apply(outputs, self.read_tokens, len(flat)).view(*states.shape[:-1], -1)


class _Pick(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, tokens: Tensor) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.num_tokens = len(states)
        return states.index_select(0, tokens)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (tokens,) = ctx.saved_tensors
        return _spread(gradients[0], tokens, ctx.num_tokens), None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, picked: Tensor, tokens: Tensor, num_tokens: int) -> Tensor:
        ctx.save_for_backward(tokens)
        return _spread(picked, tokens, num_tokens)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (tokens,) = ctx.saved_tensors
        return gradients[0].index_select(0, tokens), None, None


def _spread(picked: Tensor, tokens: Tensor, num_tokens: int) -> Tensor:
    return picked.new_zeros(num_tokens, picked.shape[1]).index_copy_(0, tokens, picked)
