"""Builds and loads models of transformers' own classes, from presets and folders."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import EuroBertConfig, PretrainedConfig, PreTrainedModel

from biphasic.data.packing import Batching
from biphasic.errors import ModelError
from biphasic.model.compute.attention import register_attention
from biphasic.model.cpu.kernels import speed_up_dropout, switch_off_dropout, use_own_layers
from biphasic.model.head import check_head, has_head
from biphasic.model.loading.configurations import close_again, open_both_ways
from biphasic.model.loading.reading import (
    PACKED,
    body_class,
    has_language_model,
    language_model_class,
    load_model,
    loading,
    read_config,
    refuse_missing,
    refuse_unfit,
    require_packing,
    without_pooler,
)
from biphasic.model.shape import Architecture
from biphasic.seeds import derive_seed


def architecture_config(
    architecture: Architecture, *, vocab_size: int, max_seqlen: int, special_ids: dict[str, int]
) -> EuroBertConfig:
    """Return the EuroBERT configuration of an architecture, with the study's shared settings."""
    # Reference: arXiv 2507.00994, Appendix A (RMSNorm, SwiGLU, RoPE with theta 10,000, untied head,
    # no biases, no dropout); epsilon and initialiser range as in the published models.
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


def new_model(
    config: PretrainedConfig, *, init_seed: int, with_head: bool = True
) -> PreTrainedModel:
    """Return a model in fp32 with random weights that depend on `init_seed` alone."""
    # Dropout is disabled in training (`switch_off_dropout`).
    register_attention()
    find_class = language_model_class if with_head else body_class
    kind = find_class(config.model_type, config)
    require_packing(config.model_type, config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed("init", init_seed))
        options = {} if with_head else without_pooler(kind)
        model = kind._from_config(config, dtype=torch.float32, **PACKED, **options)
    use_own_layers(model)
    switch_off_dropout(model)
    return model


def load_pretrained(
    folder: Path | str, *, num_embeddings: int = 0, head_for: Collection[str] = ("probabilities",)
) -> PreTrainedModel:
    """Load a decoder or encoder with its language-model head, in fp32, with our attention."""
    # Dropout is disabled in training. If the model has fewer than `num_embeddings`
    # rows (tokenizer entries), rows are added, each the mean of the existing ones, for input and
    # output. Rows beyond the tokenizer are kept as they are, and a new token gets the first.
    # Nothing is initialized at random. An encoder saved without its masked-LM head, unless this is
    # its embeddings, is refused, naming `head_for`; if that is empty, its body is returned.
    register_attention()
    config = read_config(folder)
    require_packing(folder, config)
    close_again(config)
    model, left_over = _load_with_head(folder, config, head_for)
    refuse_left_over(folder, model, left_over)
    if num_embeddings > _num_rows(model):
        _add_rows(model, num_embeddings)
    use_own_layers(model)
    switch_off_dropout(model)
    if has_head(model):
        check_head(model)
    return model


def load_encoder(folder: Path | str, *, batching: Batching = "packed") -> PreTrainedModel:
    """Load the body of any model as an encoder, in fp32, without head or pooler."""
    # With `packed`, our attention function is used; `padded` keeps the model's own, with
    # transformers' switch that makes decoders bidirectional. `check_contract` verifies that the
    # model respects it.
    register_attention()
    config = read_config(folder)
    options: dict[str, Any] = {}
    if batching == "padded":
        open_both_ways(config)
    else:
        remedy = "; set `batching: padded` in the fine-tuning protocol"
        require_packing(folder, config, remedy=remedy)
        close_again(config)
        options |= PACKED
    model, left_over = _load_body(folder, config, **options)
    refuse_left_over(folder, model, left_over)
    use_own_layers(model)
    speed_up_dropout(model)
    return model


def empty_body(folder: Path | str) -> PreTrainedModel:
    """Build the body of a model on the meta device, without its weights."""
    config = read_config(folder)
    body = body_class(folder, config)
    with loading(folder), torch.device("meta"):
        return body(config)


def stores_head(config: PretrainedConfig, names: Iterable[str]) -> bool:
    """Return whether weights by name are those of a model with a language-model head."""
    if not has_language_model(config):
        return False
    body = f"{language_model_class(config.model_type, config).base_model_prefix}."
    return any(name.startswith(body) for name in names)


def saved_buffers(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the buffers that a family saves with its weights, such as biases of routers."""
    saved = model.state_dict().keys()
    return {name: buffer for name, buffer in model.named_buffers() if name in saved}


def saved_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return all that a state stores of a model, by name; a tied head is absent."""
    return {**dict(model.named_parameters()), **saved_buffers(model)}


@torch.no_grad()
def load_weights(model: PreTrainedModel, tensors: Mapping[str, Tensor]) -> None:
    """Copy the tensors of `saved_tensors` into a model in place."""
    own = saved_tensors(model)
    differing = sorted(own.keys() ^ tensors.keys())
    if differing:
        side = "are missing or unknown"
        raise ModelError(f"weights do not fit: {len(differing)} {side}, first {differing[0]}")
    for name, tensor in own.items():
        if tensor.shape != tensors[name].shape:
            raise ModelError(
                f"weights do not fit: {name} is {list(tensors[name].shape)}, but the model has "
                f"{list(tensor.shape)}"
            )
    for name, tensor in own.items():
        tensor.copy_(tensors[name])


def _load_with_head(
    folder: Path | str, config: PretrainedConfig, head_for: Collection[str]
) -> tuple[PreTrainedModel, list[str]]:
    """Load a model with its head; without one, its body, if nothing needs a head."""
    load_body = partial(_load_body, folder, config, **PACKED)
    if not (head_for or has_language_model(config)):
        return load_body()
    kind = language_model_class(folder, config)
    model, report = load_model(kind, folder, config, **PACKED)
    missing, body = report["missing_keys"], f"{model.base_model_prefix}."
    is_split = model.base_model is not model
    if missing and is_split and not any(key.startswith(body) for key in missing):
        if not head_for:
            return load_body()
        uses = ", ".join(head_for)
        refuse_missing(
            folder,
            missing,
            remedy=f"; it was saved without its language-model head, needed for {uses}: train it "
            "on pairs, evaluate it, or choose another",
        )
    return _whole(folder, model, report)


def _load_body(
    folder: Path | str, config: PretrainedConfig, **options: Any
) -> tuple[PreTrainedModel, list[str]]:
    """Load a body without its pooler."""
    body = body_class(folder, config)
    model, report = load_model(body, folder, config, **options, **without_pooler(body))
    return _whole(folder, model, report)


def _whole(
    folder: Path | str, model: PreTrainedModel, report: Mapping[str, Any]
) -> tuple[PreTrainedModel, list[str]]:
    """Return a model that has all of its weights, and the names of weights left over."""
    refuse_missing(folder, report["missing_keys"])
    refuse_unfit(folder, report["mismatched_keys"])
    return model, report["unexpected_keys"]


# Masks of attention, which older versions of transformers saved in the layers of GPT-2's relatives.
_CAUSAL_MASK = re.compile(r"\.attn\.(attention\.)?(bias|masked_bias|causal_mask)$")


def refuse_left_over(folder: Path | str, model: PreTrainedModel, names: Collection[str]) -> None:
    """Raise an error for weights of layers that config.json does not use."""
    # Heads and poolers may be left over; layers, or their biases, would change the outputs.
    parts, body = model.base_model.named_modules(), f"{model.base_model_prefix}."
    layers = tuple(f"{name}." for name, part in parts if isinstance(part, nn.ModuleList))
    in_layers = [
        name
        for name in names
        if name.removeprefix(body).startswith(layers) and not _CAUSAL_MASK.search(name)
    ]
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
    for layer in filter(None, layers):
        # A weight and, for some heads, a bias; a tied weight is filled twice with the same values.
        for table in layer.parameters(recurse=False):
            table[held:] = table[:held].mean(0, keepdim=True)


def _num_rows(model: PreTrainedModel) -> int:
    embedding = cast(nn.Embedding, model.get_input_embeddings())
    return embedding.weight.shape[0]
