"""Matrix sizes of models that transformers builds; `shape.py` covers those of presets."""

from __future__ import annotations

import math
from collections import Counter

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from biphasic.model.loading.directions import is_decoder, is_open
from biphasic.model.loading.reading import language_model_class
from biphasic.model.shape import ModelShape


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
    # Windows of causal decoders exclude their border, those of others include it (`directions.py`).
    reach = window - 1 if is_decoder(config) and not is_open(config) else window
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    return [reach if kind == "sliding_attention" else None for kind in kinds]
