"""Reads a model's folder: its configuration and class, with one-line errors."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_MAPPING,
)
from transformers.utils import logging

from biphasic.errors import DataError, ModelError, ModelFilesError, reading
from biphasic.files import read_json, refuse_adapter
from biphasic.model.compute.attention import ATTENTION_NAME
from biphasic.model.compute.forward import REMEDY
from biphasic.model.loading.footprint import stored_tensors, weight_files

# Weights in other formats are pickles, which can run code and which no identity covers.
# `refuse_unfit` compares shapes, with a clearer message.
_LOADING = {
    "dtype": torch.float32,
    "use_safetensors": True,
    "output_loading_info": True,
    "ignore_mismatched_sizes": True,
}
_MOST_LAYERS = 10_000
PACKED = {"attn_implementation": ATTENTION_NAME}
# Settings of how to run a model, not what it computes: code, kernels, other weight files.
_FOREIGN = ("auto_map", "fusion_config", "quantization_config", "transformers_weights")
# `model_type` of fine-tuned models with a class of their own; the key `encoder` has the body's.
_OWN_TYPE = "biphasic_encoder_with_head"
_OWN_LLAMA = "biphasic_llama"  # of encoders exported as a class of their own
_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_FLOATS = {"F64", "F32", "F16", "BF16"}


def read_config(folder: Path | str) -> PretrainedConfig:
    """Read the part of a model's configuration that determines what it computes."""
    # Code that comes with it is never run, and kernels that it names are not fetched.
    with loading(folder):
        stated, _ = PretrainedConfig.get_config_dict(folder)
        if stated.get("model_type") == _OWN_TYPE:
            config = AutoConfig.for_model(**stated["encoder"])
        elif stated.get("model_type") == _OWN_LLAMA:
            config = AutoConfig.for_model(**{**stated, "model_type": "llama"})
        else:
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    for name in _FOREIGN:
        if hasattr(config, name):
            delattr(config, name)
    # Gemma 3 has a switch of its own, whose windows exclude their border unless there is also
    # `is_causal: false`. Gemma and Gemma 2 have it too, but their masks stay causal (transformers
    # 5.23).
    if config.model_type == "gemma3_text" and config.use_bidirectional_attention:
        config.sliding_window -= int(getattr(config, "is_causal", True))
        config.use_bidirectional_attention = config.is_causal = False
    config._attn_implementation = None
    config._experts_implementation = None
    return config


def load_model(
    kind: Any, folder: Path | str, config: PretrainedConfig, **options: Any
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Return a model in fp32, and its missing, left-over or mismatched weights."""
    # Only files that the model's identity covers are read.
    _check_weight_files(Path(folder))
    with loading(folder):
        return kind.from_pretrained(folder, config=config, **_LOADING, **options)


def _check_weight_files(folder: Path) -> None:
    """Refuse weight files elsewhere, adapters, and weights that need custom code to be read."""
    refuse_adapter(folder)
    for path in folder.glob("shard-*-model-*-of-*.safetensors"):
        raise ModelError(
            f"{path}: weights of a distributed checkpoint are not supported; save the model with "
            "save_pretrained into a separate folder"
        )
    for name in _indexed_files(folder / _INDEX):
        if not isinstance(name, str) or not _SHARD.fullmatch(name):
            raise ModelError(
                f"{folder / _INDEX}: names {name!r} as a file of weights; only files called "
                "model-NUMBER-of-NUMBER.safetensors in the same folder are supported: save the "
                "model again with save_pretrained"
            )
    for file in weight_files(folder):
        for name, tensor in stored_tensors(file):
            if name.endswith("weight") and tensor.get_dtype() not in _FLOATS:
                raise ModelError(
                    f"{file}: {name} is stored as {tensor.get_dtype()}: quantized weights are not "
                    "supported; use the model's original weights"
                )


def _indexed_files(path: Path) -> list[Any]:
    if not path.is_file():
        return []
    try:
        return list(read_json(path)["weight_map"].values())
    except (DataError, KeyError, TypeError, AttributeError):
        raise ModelError(f"{path}: damaged; copy or download the model again") from None


@contextmanager
def loading(folder: Path | str) -> Iterator[None]:
    """Name the folder in errors, and hide transformers' progress bars and tables."""
    had_bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        # With a damaged configuration, transformers may raise any error.
        with reading(folder, ModelFilesError, failure="cannot be loaded", remedy=REMEDY):
            yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            logging.enable_progress_bar()


def body_class(where: Path | str, config: PretrainedConfig) -> Any:
    """Return the class of the body alone, as built by `AutoModel`."""
    num_layers = getattr(config, "num_hidden_layers", 0)
    if isinstance(num_layers, int) and num_layers > _MOST_LAYERS:  # even empty layers take time
        raise ModelFilesError(
            f"{where}: config.json states more than {_MOST_LAYERS:,} layers; correct it"
        )
    body = MODEL_MAPPING.get(type(config), None)
    if config.is_encoder_decoder or not isinstance(body, type):
        raise ModelError(
            f"{where}: a model of type '{config.model_type}' is not a single stack of layers, so "
            "it cannot be used as an encoder"
        )
    if config.get_text_config() is not config:
        raise ModelError(f"{where}: a model of type '{config.model_type}' reads more than text")
    return body


def without_pooler(body: Any) -> dict[str, Any]:
    """Return the options with which a class of bodies is built without its pooler."""
    has_option = "add_pooling_layer" in inspect.signature(body).parameters
    return {"add_pooling_layer": False} if has_option else {}


def has_language_model(config: PretrainedConfig) -> bool:
    """Return whether transformers has a class with a language-model head for a type."""
    return _language_model(config) is not None


def language_model_class(where: Path | str, config: PretrainedConfig) -> Any:
    """Return the class with a language-model head: masked if there is one, else causal."""
    kind = _language_model(config)
    if kind is None:
        raise ModelError(
            f"{where}: transformers has no language-model head for type '{config.model_type}'"
        )
    return kind


def _language_model(config: PretrainedConfig) -> Any:
    mappings = (MODEL_FOR_MASKED_LM_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING)
    kinds = (mapping.get(type(config), None) for mapping in mappings)
    return next((kind for kind in kinds if isinstance(kind, type)), None)


def require_packing(where: Path | str, config: PretrainedConfig, *, remedy: str = "") -> None:
    """Raise an error for a family whose code never looks up an attention function."""
    # Whether each layer uses the function, and passes on what it needs, is probed: transformers'
    # `_supports_attention_backend` is unset for families that do.
    body = body_class(where, config)
    if hasattr(sys.modules[body.__module__], "ALL_ATTENTION_FUNCTIONS"):
        return
    with loading(where), torch.device("meta"):
        modules = body(config).named_modules()
    layer = next((name for name, module in modules if "Attention" in type(module).__name__), "")
    raise ModelError(
        f"{where}: {body.__name__} computes attention itself ({layer or 'every layer'}), without "
        f"the interface to replace it, so it would see beyond a packed document{remedy}"
    )


def refuse_missing(folder: Path | str, missing: Collection[str], *, remedy: str = "") -> None:
    """Raise an error where transformers would initialize missing weights at random."""
    if missing:
        raise ModelError(
            f"{folder}: weights are missing ({len(missing)}, first {min(missing)}){remedy}"
        )


def refuse_unfit(folder: Path | str, mismatched: Collection[tuple[str, Any, Any]]) -> None:
    """Raise an error if weights have other shapes than the configuration states."""
    # `mismatched` are name, stored shape and expected shape, as transformers reports them.
    if mismatched:
        name, stored, expected = min(mismatched)
        raise ModelError(
            f"{folder}: cannot be loaded ({len(mismatched)} weights have other shapes than "
            f"config.json says, first {name}: {list(stored)} stored, {list(expected)} expected)"
        )
