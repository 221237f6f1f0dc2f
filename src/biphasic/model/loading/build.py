"""Builds models of transformers' own classes, from a preset or a folder."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from transformers import EuroBertConfig, PretrainedConfig, PreTrainedModel

from biphasic.data.packing import Batching
from biphasic.model.compute.attention import register_attention
from biphasic.model.compute.dropout import speed_up_dropout, switch_off_dropout
from biphasic.model.compute.linear import speed_up_linear_layers
from biphasic.model.loading.directions import close_again, open_both_ways
from biphasic.model.loading.reading import (
    PACKED,
    body_class,
    language_model_class,
    load_model,
    loading,
    read_config,
    refuse_missing,
    refuse_unfit,
    require_packing,
)
from biphasic.model.presets import Architecture
from biphasic.seeds import derive_seed


def architecture_config(
    architecture: Architecture, *, vocab_size: int, max_seqlen: int, special_ids: dict[str, int]
) -> EuroBertConfig:
    """Return the EuroBERT configuration of an architecture, with the study's shared settings.

    Reference: arXiv 2507.00994, Appendix A (RMSNorm, SwiGLU, RoPE with theta 10,000, untied head,
    no biases, no dropout); epsilon and initialiser range as in the published models.
    """
    return EuroBertConfig(
        vocab_size=vocab_size,
        hidden_size=architecture.hidden_size,
        intermediate_size=architecture.intermediate_size,
        num_hidden_layers=architecture.num_layers,
        num_attention_heads=architecture.num_heads,
        num_key_value_heads=architecture.num_key_value_heads,
        max_position_embeddings=max_seqlen,
        rms_norm_eps=1e-5,
        initializer_range=0.02,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=False,
        attention_bias=False,
        attention_dropout=0.0,
        hidden_act="silu",
        bos_token_id=special_ids["bos"],
        eos_token_id=special_ids["eos"],
        pad_token_id=special_ids["pad"],
        mask_token_id=special_ids["mask"],
    )


def new_model(config: PretrainedConfig, *, init_seed: int) -> PreTrainedModel:
    """Return a model in fp32 with random weights that depend on `init_seed` alone.

    Dropout is disabled in training (`dropout.py`).

    Raises:
        ModelError: The family has no language-model head, or does not support our attention.
    """
    register_attention()
    kind = language_model_class(config.model_type, config)
    require_packing(config.model_type, config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed("init", init_seed))
        model = kind._from_config(config, dtype=torch.float32, **PACKED)
    speed_up_linear_layers(model)
    switch_off_dropout(model)
    return model


def load_encoder(folder: Path | str, *, batching: Batching = "packed") -> PreTrainedModel:
    """Load the body of any model as an encoder, in fp32, without head or pooler.

    With `packed`, our attention function is used; `padded` keeps the model's own, with
    transformers' switch that makes decoders bidirectional. `check_contract` verifies that the model
    respects it.

    Raises:
        ModelError: transformers cannot load it, weights are missing, or the model cannot be an
            encoder or cannot read packed rows.
    """
    register_attention()
    config = read_config(folder)
    body = body_class(folder, config)
    options: dict[str, Any] = {}
    if batching == "padded":
        open_both_ways(config)
    else:
        remedy = "; set `batching: padded` in the fine-tuning protocol"
        require_packing(folder, config, remedy=remedy)
        close_again(config)
        options |= PACKED
    if "add_pooling_layer" in inspect.signature(body).parameters:
        options["add_pooling_layer"] = False
    model, report = load_model(body, folder, config, **options)
    refuse_missing(folder, report["missing_keys"])
    refuse_unfit(folder, report["mismatched_keys"])
    speed_up_linear_layers(model)
    speed_up_dropout(model)
    return model


def empty_body(folder: Path | str) -> PreTrainedModel:
    """Build the body of a model on the meta device, without its weights.

    Raises:
        ModelError: transformers does not support the model, or it cannot be an encoder.
    """
    config = read_config(folder)
    body = body_class(folder, config)
    with loading(folder), torch.device("meta"):
        return body(config)
