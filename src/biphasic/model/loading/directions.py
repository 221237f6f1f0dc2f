"""Switches a decoder's configuration between causal and bidirectional, and Llama's with EuroBERT's.

A causal decoder's window excludes its border: a token attends to those less than `sliding_window`
positions before it. The same holds for packed rows, in both directions. transformers' two-sided
windows include the border, so an equivalent configuration with `is_causal: false` has a window that
is smaller by one.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from transformers import EuroBertConfig, LlamaConfig, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING


def is_decoder(config: PretrainedConfig) -> bool:
    """Return whether a family is a decoder: transformers has no masked-LM head for it."""
    return type(config) not in MODEL_FOR_MASKED_LM_MAPPING


def is_open(config: PretrainedConfig) -> bool:
    """Return whether transformers runs a decoder of this configuration bidirectionally."""
    return is_decoder(config) and getattr(config, "is_causal", True) is False


def open_both_ways(config: PretrainedConfig) -> None:
    """Make transformers build bidirectional masks, in place."""
    # Hidden states then equal those of packed rows with `causal=False`. A configuration that is
    # already bidirectional does not change; neither do encoders, except for the cache.
    config.use_cache = False  # decoders would copy all keys and values
    if is_open(config):
        return
    config.is_causal = False
    if is_decoder(config) and getattr(config, "sliding_window", None) is not None:
        config.sliding_window -= 1


def close_again(config: PretrainedConfig) -> None:
    """Undo `open_both_ways` in place, for our attention function."""
    # Our function takes the direction from the call, and windows as in a causal decoder.
    if not is_open(config):
        return
    del config.is_causal  # type: ignore[attr-defined]
    if getattr(config, "sliding_window", None) is not None:
        config.sliding_window += 1


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
