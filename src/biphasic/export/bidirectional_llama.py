"""A Llama that reads in both directions, for transformers with `trust_remote_code=True`.

biphasic writes this file beside an encoder of Llama's shape. It needs only torch and transformers:
it is tested with 4.57 and 5. The type of model is its own: as `llama`, releases before 5.2 would
run it from left to right, whatever its configuration says.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaModel


class BidirectionalLlamaConfig(LlamaConfig):
    """Configuration of a Llama."""

    model_type = "biphasic_llama"


class BidirectionalLlamaModel(LlamaModel):
    """The body of a Llama; each token attends to all tokens that are no padding."""

    config_class = BidirectionalLlamaConfig
    # These kernels take no mask of four dimensions.
    _supports_flash_attn = False
    _supports_flash_attn_2 = False
    _supports_flex_attn = False

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **options: Any,
    ) -> Any:
        """Return the states; `attention_mask` is that of padding, [batch, length]."""
        states: Any = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        batch, length, _ = states.shape
        if attention_mask is None:
            attention_mask = torch.ones(batch, length, device=states.device)
        # All releases use such a mask as it is, and make a causal one of any other.
        hidden = attention_mask[:, None, None, :].expand(batch, 1, length, length) == 0
        mask = torch.zeros_like(hidden, dtype=states.dtype)
        mask = mask.masked_fill(hidden, torch.finfo(mask.dtype).min)
        options |= {"inputs_embeds": states, "attention_mask": mask, "use_cache": False}
        return super().forward(**options)
