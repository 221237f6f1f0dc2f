"""Configurations of models: direction of attention, longest rows, and shape, without weights.

A causal decoder's window excludes its border: a token attends to those less than `sliding_window`
positions before it. The same holds for packed rows, in both directions. transformers' two-sided
windows include the border, so an equivalent configuration with `is_causal: false` has a window that
is smaller by one. Shapes are those of models that transformers builds; `shape.py` has those of
presets.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from transformers import EuroBertConfig, LlamaConfig, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

from biphasic.errors import ModelError
from biphasic.model.compute.forward import first_position
from biphasic.model.loading.reading import language_model_class
from biphasic.model.shape import ModelShape


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
    "attention_bias", "attention_dropout", "mlp_bias", "rope_parameters",
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
    settings = _kept(config)
    # EuroBERT does not accept None; its own default may be another token, or none.
    mask = getattr(config, "mask_token_id", None)
    if mask is not None:
        settings["mask_token_id"] = mask
    return EuroBertConfig(**settings)


def llama_config(config: PretrainedConfig) -> LlamaConfig | None:
    """Return the configuration of the decoder with the weights of an EuroBERT; None for others."""
    return LlamaConfig(**_kept(config)) if type(config) is EuroBertConfig else None


def _kept(config: PretrainedConfig) -> dict[str, Any]:
    return {name: deepcopy(getattr(config, name)) for name in _KEPT}


def config_shape(config: PretrainedConfig) -> ModelShape:
    """Return the shape of a model without loading it: built on the meta device."""
    kind = language_model_class(config.model_type, config)
    with torch.device("meta"):
        return model_shape(kind(config))


def model_shape(model: PreTrainedModel) -> ModelShape:
    """Return the shape of a model with its language-model head."""
    config = model.config
    body = matrix_weights(model.base_model, config)
    output = model.get_output_embeddings()
    # A tied head is a separate module that shares a weight: it is counted once, here.
    head = matrix_weights(model, config) - body
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return ModelShape(
        body=body,
        head=head if output is not None else 0,
        attention_width=config.num_attention_heads * head_dim,
        reaches=tuple(Counter(_layer_reaches(config)).items()),
    )


def matrix_weights(module: nn.Module, config: PretrainedConfig) -> int:
    """Count the entries of the matrices a token is multiplied with, without embedding tables."""
    total = 0
    for name, part in module.named_modules():
        parameters = [] if isinstance(part, nn.Embedding) else part.parameters(recurse=False)
        shapes = [parameter.shape for parameter in parameters]
        num_experts = getattr(part, "num_experts", 0)
        stacks = [shape for shape in shapes if len(shape) == 3 and shape[0] == num_experts]
        if stacks:  # biases of experts are matrices too
            counts = (getattr(config, name, None) for name in ("num_experts_per_tok", "moe_topk"))
            # All experts, if a router has no known choice.
            active = next((count for count in counts if isinstance(count, int)), num_experts)
            weights = sum(active * math.prod(shape[1:]) for shape in stacks)
        else:
            weights = sum(math.prod(shape) for shape in shapes if len(shape) == 2)
        if "albert_layer_groups" in name:
            weights = weights * config.num_hidden_layers / config.num_hidden_groups
        total += weights
    return round(total)


def _layer_reaches(config: PretrainedConfig) -> list[int | None]:
    """Return how many tokens each layer attends to on each side; None for all."""
    window = getattr(config, "sliding_window", None)
    if window is None:
        # ALBERT's groups of shared layers hold several.
        return [None] * (config.num_hidden_layers * getattr(config, "inner_group_num", 1))
    # Windows of causal decoders exclude their border, those of others include it.
    reach = window - 1 if is_decoder(config) and not is_open(config) else window
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    return [reach if kind == "sliding_attention" else None for kind in kinds]


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
