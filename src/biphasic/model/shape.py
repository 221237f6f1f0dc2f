"""The matrices of a model, as far as their cost goes: FLOPs follow from these and the rows."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from biphasic.data.packing import PackedBatch
from biphasic.model.directions import is_decoder, is_open
from biphasic.model.presets import Architecture
from biphasic.model.reading import language_model_class


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What an update costs, in weights and widths.

    Attributes:
        body: Weights that a token is multiplied with: of experts those that it is sent to, of
            shared layers as often as they run.
        head: Weights that every supervised token is multiplied with.
        attention_width: Query heads times their dimension, in each layer.
        reaches: How many tokens a layer sees on a side of each, None for all; and how many layers
            do so.
    """

    body: int
    head: int
    attention_width: int
    reaches: tuple[tuple[int | None, int], ...]

    def forward_flops(self, rows: PackedBatch, *, supervised_tokens: int, causal: bool) -> int:
        """Count the operations of matrix products in one forward pass: two per multiply-add.

        Attention is counted by the true lengths of the sequences and the windows of the layers;
        norms, softmax and look-ups are left out.
        """
        lengths = (rows.spans[:, 1] - rows.spans[:, 0]).astype(np.int64)
        pairs = sum(count * _pairs(lengths, reach, causal=causal) for reach, count in self.reaches)
        weights = self.body * int(lengths.sum()) + self.head * supervised_tokens
        return 2 * weights + 2 * 2 * self.attention_width * pairs


def architecture_shape(architecture: Architecture, *, vocab_size: int) -> ModelShape:
    """Return the shape of a preset's model, by arithmetic alone."""
    width = architecture.hidden_size
    key_value_width = width // architecture.num_heads * architecture.num_key_value_heads
    matrices = 2 * width * width + 2 * width * key_value_width
    matrices += 3 * width * architecture.intermediate_size
    return ModelShape(
        body=architecture.num_layers * matrices,
        head=width * vocab_size,
        attention_width=width,
        reaches=((None, architecture.num_layers),),
    )


def config_shape(config: PretrainedConfig) -> ModelShape:
    """Return the shape of a model that is not there: built on the meta device, without memory.

    Raises:
        ModelError: transformers has no language-model head for it.
    """
    kind = language_model_class(config.model_type, config)
    with torch.device("meta"):
        return model_shape(kind(config))


def model_shape(model: PreTrainedModel) -> ModelShape:
    """Return the shape of a model with its language-model head."""
    config = model.config
    body = _matrix_weights(model.base_model, config)
    output = model.get_output_embeddings()
    # A tied head is a module of its own that shares a weight: it is counted once, here.
    head = _matrix_weights(model, config) - body
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return ModelShape(
        body=body,
        head=head if output is not None else 0,
        attention_width=config.num_attention_heads * head_dim,
        reaches=tuple(Counter(_layer_reaches(config)).items()),
    )


def _matrix_weights(module: nn.Module, config: PretrainedConfig) -> int:
    """Count the entries of the matrices that a token is multiplied with; tables are looked up."""
    total = 0
    for name, part in module.named_modules():
        parameters = [] if isinstance(part, nn.Embedding) else part.parameters(recurse=False)
        shapes = [parameter.shape for parameter in parameters]
        num_experts = getattr(part, "num_experts", 0)
        stacks = [shape for shape in shapes if len(shape) == 3 and shape[0] == num_experts]
        if stacks:  # biases of experts are matrices too
            active = _experts_per_token(config, num_experts)
            weights = sum(active * math.prod(shape[1:]) for shape in stacks)
        else:
            weights = sum(math.prod(shape) for shape in shapes if len(shape) == 2)
        if "albert_layer_groups" in name:
            weights = weights * config.num_hidden_layers / config.num_hidden_groups
        total += weights
    return round(total)


def _experts_per_token(config: PretrainedConfig, num_experts: int) -> int:
    """Return how many experts a router sends each token to; all where none is known to choose."""
    for name in ("num_experts_per_tok", "moe_topk"):
        if isinstance(count := getattr(config, name, None), int):
            return count
    return num_experts


def _layer_reaches(config: PretrainedConfig) -> list[int | None]:
    """Return how many tokens each layer sees on a side of each; None for all.

    Windows of causal decoders leave out their border, those of others include it
    (`directions.py`).
    """
    window = getattr(config, "sliding_window", None)
    if window is None:
        # ALBERT's groups of shared layers hold several.
        return [None] * (config.num_hidden_layers * getattr(config, "inner_group_num", 1))
    reach = window - 1 if is_decoder(config) and not is_open(config) else window
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    return [reach if kind == "sliding_attention" else None for kind in kinds]


def _pairs(lengths: np.ndarray, reach: int | None, *, causal: bool) -> int:
    """Count the pairs of tokens that see each other."""
    seen = lengths if reach is None else np.minimum(lengths, reach + 1)
    # The first tokens see ever more before them and themselves, the others `seen` each.
    before = int((seen * (seen + 1) // 2 + (lengths - seen) * seen).sum())
    return before if causal else 2 * before - int(lengths.sum())
