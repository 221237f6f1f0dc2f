"""Loads finished language models of any family for training, and copies weights into a model."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from biphasic.errors import ModelError
from biphasic.model.compute.attention import register_attention
from biphasic.model.compute.dropout import switch_off_dropout
from biphasic.model.compute.linear import speed_up_linear_layers
from biphasic.model.head import check_head
from biphasic.model.loading.directions import close_again
from biphasic.model.loading.reading import (
    PACKED,
    language_model_class,
    load_model,
    read_config,
    refuse_missing,
    refuse_unfit,
    require_packing,
)


def load_pretrained(folder: Path | str, *, num_embeddings: int = 0) -> PreTrainedModel:
    """Load a decoder or encoder with its language-model head, in fp32, with our attention.

    Dropout is disabled in training (`dropout.py`). If the model has fewer than `num_embeddings`
    rows (tokenizer entries), rows are added, each the mean of the existing ones, for input and
    output; additional rows of the model are kept.

    Nothing is initialized at random: an encoder saved without its masked-LM head is refused, unless
    the head is its embeddings and needs no further weights.

    Raises:
        ModelError: transformers cannot load it as a language model, weights are missing, left over
            or of other shapes, or its head or attention is not supported.
    """
    register_attention()
    config = read_config(folder)
    require_packing(folder, config)
    close_again(config)
    kind = language_model_class(folder, config)
    model, report = load_model(kind, folder, config, **PACKED)
    refuse_missing(folder, report["missing_keys"])
    refuse_unfit(folder, report["mismatched_keys"])
    _refuse_left_over(folder, model, report["unexpected_keys"])
    if num_embeddings > _num_rows(model):
        _add_rows(model, num_embeddings)
    speed_up_linear_layers(model)
    switch_off_dropout(model)
    check_head(model)
    return model


@torch.no_grad()
def load_weights(model: PreTrainedModel, tensors: Mapping[str, Tensor]) -> None:
    """Copy weights into a model in place.

    Names are those of `named_parameters`, so a tied head is absent.

    Raises:
        ModelError: Names or shapes differ; no weight has been changed.
    """
    parameters = dict(model.named_parameters())
    differing = sorted(parameters.keys() ^ tensors.keys())
    if differing:
        side = "are missing or unknown"
        raise ModelError(f"weights do not fit: {len(differing)} {side}, first {differing[0]}")
    for name, parameter in parameters.items():
        if parameter.shape != tensors[name].shape:
            raise ModelError(
                f"weights do not fit: {name} is {list(tensors[name].shape)}, but the model has "
                f"{list(parameter.shape)}"
            )
    for name, parameter in parameters.items():
        parameter.copy_(tensors[name])


def _refuse_left_over(folder: Path | str, model: PreTrainedModel, names: Collection[str]) -> None:
    # Heads and poolers may be left over; layers, or their biases, would change the outputs.
    is_of_layer = re.compile(rf"({re.escape(model.base_model_prefix)}\.)?(\w+\.)*\d+\.")
    in_layers = [name for name in names if is_of_layer.match(name)]
    if in_layers:
        raise ModelError(
            f"{folder}: config.json does not use {len(in_layers)} weights, first "
            f"{min(in_layers)}; they need another configuration or custom code"
        )


@torch.no_grad()
def _add_rows(model: PreTrainedModel, num_embeddings: int) -> None:
    """Add rows to the input embeddings and, if it is separate, to the head."""
    held = _num_rows(model)
    with torch.random.fork_rng(devices=[]):  # transformers draws rows, which are overwritten
        model.resize_token_embeddings(num_embeddings, mean_resizing=False)
    layers = (model.get_input_embeddings(), model.get_output_embeddings())
    for layer in cast(tuple[nn.Module, ...], layers):
        # A weight and, for some heads, a bias; a tied weight is filled twice with the same values.
        for table in layer.parameters(recurse=False):
            table[held:] = table[:held].mean(0, keepdim=True)


def _num_rows(model: PreTrainedModel) -> int:
    embedding = cast(nn.Embedding, model.get_input_embeddings())
    return embedding.weight.shape[0]
