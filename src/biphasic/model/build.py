"""Models: transformers' own classes, new from a preset or loaded from a folder."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator
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
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING, MODEL_MAPPING
from transformers.utils import logging

from biphasic.errors import ModelError
from biphasic.model.attention import ATTENTION_NAME, register_attention
from biphasic.model.dropout import speed_up_dropout
from biphasic.model.forward import Batching
from biphasic.model.linear import speed_up_linear_layers
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
        options = {"attn_implementation": ATTENTION_NAME, "dtype": torch.float32}
        if isinstance(config, EuroBertConfig):
            model = EuroBertForMaskedLM._from_config(config, **options)
        else:
            model = _language_model_class(config).from_config(config, **options)
    speed_up_linear_layers(model)
    return model


def load_model(folder: Path | str) -> PreTrainedModel:
    """Load a model with its language-model head, in fp32, behind our attention function.

    Raises:
        ModelError: transformers cannot load it as a language model, or weights are missing.
    """
    register_attention()
    config = _read_config(folder)
    with _loading(folder):
        model, report = _language_model_class(config).from_pretrained(
            folder, attn_implementation=ATTENTION_NAME, **_LOADING
        )
    # An encoder may come without a head.
    body = f"{model.base_model_prefix}."
    _refuse_missing(folder, [key for key in report["missing_keys"] if key.startswith(body)])
    speed_up_linear_layers(model)
    return model


def load_encoder(folder: Path | str, *, batching: Batching = "packed") -> PreTrainedModel:
    """Load the body of any model as an encoder, in fp32: no head, no pooler.

    Args:
        folder: With `config.json` and weights as safetensors, of a model with or without heads.
        batching: `packed` puts it behind our attention function; `padded` leaves it its own, with
            transformers' switch set that lets decoders see both ways. Whether the model heeds it
            is for `check_contract` to find out.

    Raises:
        ModelError: transformers cannot load it, weights are missing, or the model cannot be an
            encoder or cannot read packed rows.
    """
    register_attention()
    config = _read_config(folder)
    body = _body_class(folder, config)
    options: dict[str, Any] = {}
    if batching == "padded":
        _open_both_ways(config)
    elif body._supports_attention_backend:
        options["attn_implementation"] = ATTENTION_NAME
    else:
        raise ModelError(
            f"{folder}: {body.__name__} attends by a function of its own, which would see beyond "
            "a packed document; set `batching: padded` in the fine-tuning protocol"
        )
    if "add_pooling_layer" in inspect.signature(body).parameters:
        options["add_pooling_layer"] = False
    with _loading(folder):
        model, report = body.from_pretrained(folder, config=config, **options, **_LOADING)
    _refuse_missing(folder, report["missing_keys"])
    speed_up_linear_layers(model)
    speed_up_dropout(model)
    return model


def empty_body(folder: Path | str) -> PreTrainedModel:
    """Build the body of a model on the meta device: its shape without its weights.

    Raises:
        ModelError: transformers does not know the model, or it cannot be an encoder.
    """
    config = _read_config(folder)
    body = _body_class(folder, config)
    with _loading(folder), torch.device("meta"):
        return body(config)


# Weights of other formats are pickles, which can run code and which no identity covers.
_LOADING = {"dtype": torch.float32, "use_safetensors": True, "output_loading_info": True}


def _read_config(folder: Path | str) -> PretrainedConfig:
    with _loading(folder):
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)


def _body_class(folder: Path | str, config: PretrainedConfig) -> Any:
    """Return the class of the body alone: what `AutoModel` would build."""
    body = MODEL_MAPPING.get(type(config), None)
    if config.is_encoder_decoder or not isinstance(body, type):
        raise ModelError(
            f"{folder}: a model of type '{config.model_type}' is not one stack of layers, so it "
            "cannot be an encoder here"
        )
    if config.get_text_config() is not config:
        raise ModelError(f"{folder}: a model of type '{config.model_type}' reads more than text")
    return body


def _open_both_ways(config: PretrainedConfig) -> None:
    """Let transformers build masks that let every token see those after it too.

    A decoder's window leaves out its border: a token sees those less than `sliding_window`
    positions before it, and so it does on packed rows in both directions. transformers'
    two-sided windows include the border.
    """
    config.use_cache = False  # decoders would copy every key and value into one
    config.is_causal = False
    is_decoder = type(config) not in MODEL_FOR_MASKED_LM_MAPPING
    if is_decoder and getattr(config, "sliding_window", None) is not None:
        config.sliding_window -= 1


def _refuse_missing(folder: Path | str, missing: Collection[str]) -> None:
    """Raise where transformers would draw missing weights at random and go on."""
    if missing:
        raise ModelError(f"{folder}: weights are missing ({len(missing)}, first {min(missing)})")


@contextmanager
def _loading(folder: Path | str) -> Iterator[None]:
    """Name the folder in errors; keep transformers from drawing bars and tables of its own."""
    had_bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{folder}: cannot be loaded ({' '.join(str(error).split())})") from None
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
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
