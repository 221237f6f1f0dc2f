"""Llama-shaped decoders as EuroBERT, which has masked-LM and classification heads, and back."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from transformers import EuroBertConfig, LlamaConfig, PretrainedConfig

_KEPT = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "hidden_act", "max_position_embeddings", "initializer_range",
    "rms_norm_eps", "pad_token_id", "bos_token_id", "eos_token_id", "tie_word_embeddings",
    "attention_bias", "attention_dropout", "rope_parameters",
)  # fmt: skip


def eurobert_config(config: PretrainedConfig) -> EuroBertConfig | None:
    """Return the EuroBERT configuration that gives a model's weights the same meaning."""
    # The weights keep their names (`model.*`, `lm_head.weight`), so a saved model needs only this
    # configuration. None for any family except Llama, and if the feed-forward layers have biases:
    # EuroBERT's language-model head then has one too, for which a Llama has no weights.
    if type(config) is not LlamaConfig or config.mlp_bias:
        return None
    if getattr(config, "sliding_window", None) is not None:
        return None
    kept = _kept(config)
    # EuroBERT does not accept None; its own default may be another token, or none.
    mask = getattr(config, "mask_token_id", None)
    if mask is not None:
        kept["mask_token_id"] = mask
    return EuroBertConfig(**kept)


def llama_config(config: PretrainedConfig) -> LlamaConfig | None:
    """Return the configuration of the decoder with the weights of an EuroBERT; None for others."""
    return LlamaConfig(**_kept(config)) if type(config) is EuroBertConfig else None


def _kept(config: PretrainedConfig) -> dict[str, Any]:
    return {name: deepcopy(getattr(config, name)) for name in _KEPT}
