"""A decoder's configuration in two directions: its own, and as transformers opens it both ways.

A causal decoder's window leaves out its border: a token sees those less than `sliding_window`
positions before it, and so it does on packed rows, in both directions. transformers' two-sided
windows include the border. So a configuration that says `is_causal: false` has a window one
narrower, and means the same.
"""

from __future__ import annotations

from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING


def is_decoder(config: PretrainedConfig) -> bool:
    """Tell whether a family is a decoder: one that transformers has no masked-LM head for."""
    return type(config) not in MODEL_FOR_MASKED_LM_MAPPING


def is_open(config: PretrainedConfig) -> bool:
    """Tell whether transformers lets a decoder of this configuration see both ways."""
    return is_decoder(config) and getattr(config, "is_causal", True) is False


def open_both_ways(config: PretrainedConfig) -> None:
    """Let transformers build masks that let every token see those after it too, in place.

    Hidden states are then those of packed rows with `causal=False`. A configuration that is open
    already stays as it is; so do encoders, but for the cache.
    """
    config.use_cache = False  # decoders would copy every key and value into one
    if is_open(config):
        return
    config.is_causal = False
    if is_decoder(config) and getattr(config, "sliding_window", None) is not None:
        config.sliding_window -= 1


def close_again(config: PretrainedConfig) -> None:
    """Undo `open_both_ways`, in place: the form that our attention function reads.

    It takes direction from the call, and windows as a causal decoder has them.
    """
    if not is_open(config):
        return
    del config.is_causal  # type: ignore[attr-defined]
    if getattr(config, "sliding_window", None) is not None:
        config.sliding_window += 1
