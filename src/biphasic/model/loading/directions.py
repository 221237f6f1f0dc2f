"""Switches a decoder's configuration between causal and bidirectional.

A causal decoder's window excludes its border: a token attends to those less than `sliding_window`
positions before it. The same holds for packed rows, in both directions. transformers' two-sided
windows include the border, so an equivalent configuration with `is_causal: false` has a window that
is smaller by one.
"""

from __future__ import annotations

from transformers import PretrainedConfig
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
