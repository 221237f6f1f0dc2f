"""Models: transformers' own classes, new from a preset or loaded from a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    EuroBertConfig,
    EuroBertForMaskedLM,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING
from transformers.utils import logging

from biphasic.errors import ModelError
from biphasic.model.attention import ATTENTION_NAME, register_attention
from biphasic.model.presets import PRESETS, Architecture
from biphasic.seeds import derive_seed


def architecture_config(
    architecture: Architecture, *, vocab_size: int, max_seqlen: int, special_ids: dict[str, int]
) -> EuroBertConfig:
    """Return the EuroBERT configuration of an architecture, with the study's shared settings.

    Args:
        architecture: Dimensions of the model.
        vocab_size: Entries of the vocabulary.
        max_seqlen: Longest sequence in tokens.
        special_ids: Ids of the tokenizer's `bos`, `eos`, `pad` and `mask`.

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


def preset_config(preset: str, **shared: Any) -> EuroBertConfig:
    """Return the configuration of a preset; `shared` as in `architecture_config`."""
    return architecture_config(PRESETS[preset], **shared)


def new_model(config: PretrainedConfig, *, init_seed: int) -> PreTrainedModel:
    """Return a model in fp32 with random weights that depend on `init_seed` alone."""
    register_attention()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed("init", init_seed))
        if isinstance(config, EuroBertConfig):
            return EuroBertForMaskedLM._from_config(
                config, attn_implementation=ATTENTION_NAME, dtype=torch.float32
            )
        return _language_model_class(config).from_config(
            config, attn_implementation=ATTENTION_NAME, dtype=torch.float32
        )


def load_model(folder: Path | str) -> PreTrainedModel:
    """Load a model with its language-model head, in fp32, behind our attention function.

    Raises:
        ModelError: transformers cannot load it as a language model, or weights are missing.
    """
    register_attention()
    try:
        config = AutoConfig.from_pretrained(folder)
        with _without_progress_bar():
            model, loading = _language_model_class(config).from_pretrained(
                folder,
                attn_implementation=ATTENTION_NAME,
                dtype=torch.float32,
                output_loading_info=True,
            )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{folder}: cannot be loaded ({' '.join(str(error).split())})") from None
    # transformers draws missing weights at random and goes on. An encoder may come without a head.
    body = f"{model.base_model_prefix}."
    missing = sorted(key for key in loading["missing_keys"] if key.startswith(body))
    if missing:
        raise ModelError(f"{folder}: weights are missing ({len(missing)}, first {missing[0]})")
    return model


@contextmanager
def _without_progress_bar() -> Iterator[None]:
    """Keep transformers from drawing a bar of its own, which it does in files and pipes too."""
    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def _language_model_class(config: PretrainedConfig) -> Any:
    is_masked = type(config) in MODEL_FOR_MASKED_LM_MAPPING
    return AutoModelForMaskedLM if is_masked else AutoModelForCausalLM


def count_parameters(config: EuroBertConfig) -> dict[str, int]:
    """Count parameters on the meta device, without memory: body, embedding, head."""
    with torch.device("meta"):
        model = EuroBertForMaskedLM(config)
    counts = {name: parameter.numel() for name, parameter in model.named_parameters()}
    embedding = counts["model.embed_tokens.weight"]
    head = counts.get("lm_head.weight", 0)  # absent where it is tied
    return {"body": sum(counts.values()) - embedding - head, "embedding": embedding, "head": head}


def head_weight(model: PreTrainedModel) -> Tensor:
    """Return the language-model head's weight: [vocab_size, hidden_size].

    Raises:
        ModelError: The model has no such head.
    """
    head = model.get_output_embeddings()
    if head is None:
        raise ModelError(f"{type(model).__name__} has no language-model head")
    return head.weight
