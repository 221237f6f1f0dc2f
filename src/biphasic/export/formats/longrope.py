"""Makes length-dependent rotary positions traceable for graph export."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

LONGROPE = "longrope"


@contextmanager
def traceable_longrope(body: PreTrainedModel) -> Iterator[None]:
    """Make a model choose between its short and long frequencies within the graph, temporarily.

    transformers writes the chosen frequencies into a buffer. Some releases branch for this, which
    cannot be traced (5.17). With others, depending on how torch traces, the graph holds either the
    choice or only the traced buffer; the latter is silently wrong beyond the length of the short
    frequencies (5.23 with gradients). Only rotary positions of type `longrope` are changed (Phi-3,
    128k).

    Reference: Ding et al. 2024, "LongRoPE", arXiv:2402.13753, as in transformers.
    """
    rotaries = {
        name: module
        for name, module in body.named_modules()
        if getattr(module, "rope_type", None) == LONGROPE
    }
    for name, rotary in rotaries.items():
        body.set_submodule(name, _ByLength(rotary))
    try:
        yield
    finally:
        for name, rotary in rotaries.items():
            body.set_submodule(name, rotary)


class _ByLength(nn.Module):
    """Two rotary modules with fixed frequencies, and the choice between them."""

    def __init__(self, rotary: Any) -> None:
        super().__init__()
        self.limit: int = rotary.config.rope_parameters["original_max_position_embeddings"]
        self.short = _fixed(rotary, length=self.limit)
        self.long = _fixed(rotary, length=self.limit + 1)

    def forward(self, states: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        is_long = position_ids.max() >= self.limit
        short_cos, short_sin = self.short(states, position_ids)
        long_cos, long_sin = self.long(states, position_ids)
        return torch.where(is_long, long_cos, short_cos), torch.where(is_long, long_sin, short_sin)


def _fixed(rotary: Any, *, length: int) -> nn.Module:
    """Return a copy whose frequencies are fixed to those for one input length."""
    fixed = copy.deepcopy(rotary)
    fixed.rope_type = "default"
    frequencies, fixed.attention_scaling = ROPE_INIT_FUNCTIONS[LONGROPE](
        rotary.config, torch.device("cpu"), seq_len=length
    )
    fixed.inv_freq = frequencies
    return fixed
