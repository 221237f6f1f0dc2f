"""Extends models with rotary positions to longer rows."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from biphasic.errors import ModelError
from biphasic.model.compute.forward import first_position

_GLOBAL = "full_attention"
_BY_LENGTH = ("dynamic", "longrope")  # different frequencies for short and long batches


def check_length(model: PreTrainedModel, max_seqlen: int) -> None:
    """Raise an error for rows with longer sequences than a model can read consistently."""
    config = model.config
    limit = getattr(config, "max_position_embeddings", None)
    if limit is not None and limit > 0 and max_seqlen > limit - first_position(model):
        raise ModelError(
            f"{type(model).__name__} has positions for {limit - first_position(model)} tokens, "
            f"not for max_seqlen {max_seqlen}"
        )
    _check_frequencies(config, max_seqlen)


def _check_frequencies(config: PretrainedConfig, max_seqlen: int) -> None:
    """Raise an error if longer sequences than the original ones change those beside them."""
    limit = getattr(config, "max_position_embeddings", None)
    for parameters in _rope_parameters(config):
        original = int(parameters.get("original_max_position_embeddings") or limit or 0)
        if parameters.get("rope_type") in _BY_LENGTH and max_seqlen > original:
            raise ModelError(
                f"a model of type '{config.model_type}' changes the rotary frequencies of the "
                f"whole batch if one sequence is longer than {original} tokens (rope type "
                f"'{parameters['rope_type']}'), so packed documents would affect each other; set "
                f"max_seqlen to at most {original}"
            )


def extend_config(
    config: PretrainedConfig, *, first: int, max_seqlen: int, rope_theta: float | None = None
) -> None:
    """Extend a configuration to positions for `max_seqlen` tokens, in place; never shorten it."""
    # `first` is the position of a sequence's first token.
    # `rope_theta` is a new base of the rotary frequencies; None keeps them. If a family has one for
    # each layer type (Gemma 3, ModernBERT), only that of full attention changes, because windows do
    # not grow with the row.
    parameters = _rope_parameters(config)
    limit = getattr(config, "max_position_embeddings", None) or 0
    if not parameters:
        if max_seqlen <= limit - first and rope_theta is None:
            return
        raise ModelError(
            f"a model of type '{config.model_type}' has no rotary positions: it reads at most "
            f"{limit - first} tokens, and has no rope_theta"
        )
    _check_frequencies(config, max_seqlen)  # the original length may follow from the limit
    config.max_position_embeddings = max(limit, max_seqlen)
    if rope_theta is not None:
        for changed in parameters:
            changed["rope_theta"] = float(rope_theta)


def extend_context(
    model: PreTrainedModel, *, max_seqlen: int, rope_theta: float | None = None
) -> None:
    """Extend a loaded model to longer rows in place, as if loaded with `extend_config`'s result."""
    is_rotary = bool(_rope_parameters(model.config))
    if is_rotary or rope_theta is not None:
        first = first_position(model)
        extend_config(model.config, first=first, max_seqlen=max_seqlen, rope_theta=rope_theta)
    for parent in list(model.modules()) if is_rotary else ():
        for name, child in list(parent.named_children()):
            if type(child).__name__.endswith("RotaryEmbedding"):
                setattr(parent, name, _rebuilt(child, model))
    check_length(model, max_seqlen)


def _rope_parameters(config: PretrainedConfig) -> list[dict[str, Any]]:
    """Return the rope parameters that may change: one set, or that of full-attention layers."""
    parameters = getattr(config, "rope_parameters", None)
    if not parameters:
        return []
    if "rope_theta" in parameters or "rope_type" in parameters:
        return [parameters]
    return [parameters[_GLOBAL]] if parameters.get(_GLOBAL) else []


def _rebuilt(rotary: nn.Module, model: PreTrainedModel) -> nn.Module:
    kind = type(rotary)
    if "config" not in inspect.signature(kind).parameters:
        raise ModelError(f"{type(model).__name__}: {kind.__name__} cannot be rebuilt")
    return kind(config=model.config).to(model.device).train(rotary.training)
