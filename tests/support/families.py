"""Small random models of every family that is tested, and what was measured on them.

A test that measures something of a family calls `record`; `record_families.py` runs those tests
and writes the table of `docs/families.md` from what they recorded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from biphasic.data.tokens.tokenizer import TextTokenizer

Column = Literal["contract", "clm", "mlm", "packed", "export", "onnx", "refused"]
RECORDS = "BIPHASIC_FAMILY_RECORDS"
"""Environment variable: the file that measurements are appended to; unset, they are dropped."""

SHARED: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # Ten times the usual: with small weights attention hardly matters and every leak stays hidden.
    "initializer_range": 0.2,
}
_GROUPED = {**SHARED, "num_key_value_heads": 2}
_NO_DROPOUT = {**SHARED, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]
# Shorter than the tests' documents; the contract's probe still sees all of its own.
_WINDOW = {"layer_types": _ALTERNATING, "sliding_window": 6}
_UNTIED = {"tie_word_embeddings": False}
_TIED = {"tie_word_embeddings": True}


@dataclass(frozen=True)
class Family:
    """One family, or one form of it.

    Attributes:
        title: As its makers write it.
        config: Name of its configuration class in transformers.
        settings: Of the small model.
        features: What is particular about it, in words.
        shard_size: Largest file of weights when saved.
    """

    title: str
    config: str
    settings: dict[str, Any] = field(repr=False)
    features: str
    shard_size: str = "1GB"


FAMILIES: dict[str, Family] = {
    "llama": Family(
        "Llama 2", "LlamaConfig", {**_GROUPED, **_UNTIED},
        "grouped queries, untied head, weights in several files", shard_size="20KB",
    ),
    "llama3": Family(
        "Llama 3.2", "LlamaConfig",
        {
            **_GROUPED, **_TIED,
            "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0,
                "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        },
        "grouped queries, tied head, llama3 rope scaling",
    ),
    "smollm2": Family(
        "SmolLM2", "LlamaConfig", {**SHARED, **_TIED, "num_key_value_heads": 4}, "tied head"
    ),
    "smollm3": Family(
        "SmolLM3", "SmolLM3Config", {**_GROUPED, **_TIED, "no_rope_layer_interval": 2},
        "layers without positions, tied head",
    ),
    "qwen2": Family(
        "Qwen2", "Qwen2Config", {**_GROUPED, **_WINDOW, **_UNTIED, "use_sliding_window": True},
        "biases on queries, keys and values, sliding windows in some layers, untied head",
    ),
    "qwen2.5": Family(
        "Qwen2.5", "Qwen2Config", {**_GROUPED, **_TIED},
        "biases on queries, keys and values, tied head",
    ),
    "qwen3": Family(
        "Qwen3", "Qwen3Config",
        {
            **_GROUPED, **_TIED, "head_dim": 16,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        },
        "norms on queries and keys, heads wider than the model, yarn rope scaling, tied head",
    ),
    "mistral": Family(
        "Mistral", "MistralConfig", {**_GROUPED, **_UNTIED, "sliding_window": 6},
        "sliding windows in every layer, untied head",
    ),
    "olmo2": Family(
        "OLMo 2", "Olmo2Config", {**_GROUPED, **_UNTIED},
        "norms behind the layers and on queries and keys, untied head",
    ),
    "gemma2": Family(
        "Gemma 2", "Gemma2Config",
        {
            **_GROUPED, **_WINDOW, **_TIED, "head_dim": 8, "query_pre_attn_scalar": 8,
            # Low enough to matter for weights such as these.
            "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
        },
        "capped attention scores and logits, sliding windows in some layers, tied head",
    ),
    "gemma3": Family(
        "Gemma 3 (text)", "Gemma3TextConfig", {**_GROUPED, **_WINDOW, **_TIED, "head_dim": 8},
        "norms on queries and keys, sliding windows and a rope theta of their own, tied head",
    ),
    "phi3": Family(
        "Phi-3", "Phi3Config",
        {
            **_GROUPED, **_UNTIED, "sliding_window": 6, "original_max_position_embeddings": 32,
            "rope_parameters": {
                "rope_type": "longrope", "rope_theta": 10_000.0,
                "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0],
                "original_max_position_embeddings": 32,
            },
        },
        "fused projections, longrope scaling, sliding windows in every layer, untied head",
    ),
    "eurobert": Family(
        "EuroBERT", "EuroBertConfig", {**_GROUPED, **_UNTIED, "mask_token_id": 3},
        "grouped queries, untied head",
    ),
    "modernbert": Family(
        "ModernBERT", "ModernBertConfig",
        # Layers 1 and 2 see five tokens on each side.
        {**SHARED, "local_attention": 10, "cls_token_id": 1, "sep_token_id": 2},
        "local and global layers with rope thetas of their own, dense layer before the tied head",
    ),
    "modernbert-decoder": Family(
        "ModernBERT decoder (Ettin)", "ModernBertDecoderConfig",
        {**SHARED, "local_attention": 12, "cls_token_id": 1, "sep_token_id": 2},
        "local and global layers with rope thetas of their own, dense layer before the tied head",
    ),
    "biogpt": Family(
        "BioGPT", "BioGptConfig", {**_NO_DROPOUT, "activation_dropout": 0.0, "layerdrop": 0.0},
        "absolute positions from 2, scaled embeddings, tied head",
    ),
    "bert": Family(
        "BERT", "BertConfig", _NO_DROPOUT, "absolute positions, dense layer before the tied head"
    ),
    "roberta": Family(
        "RoBERTa", "RobertaConfig",
        # Positions of its texts begin at 2, behind the row of padding.
        {**_NO_DROPOUT, "pad_token_id": 1, "bos_token_id": 0, "max_position_embeddings": 66},
        "absolute positions from 2, dense layer before the tied head",
    ),
}  # fmt: skip
"""Families that train and export, by a short name."""

AS_OTHERS = {"smollm2", "qwen2.5"}
"""Families whose modules and settings others have, too; they are measured for the page alone."""
DISTINCT = [name for name in FAMILIES if RECORDS in os.environ or name not in AS_OTHERS]

PADDED_ONLY: dict[str, Family] = {
    "mpnet": Family(
        "MPNet", "MPNetConfig", {**_NO_DROPOUT, "pad_token_id": 1, "bos_token_id": 0},
        "adds biases of its own to attention",
    ),
    "deberta-v2": Family(
        "DeBERTa v2", "DebertaV2Config",
        {**_NO_DROPOUT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
        "adds biases of its own to attention",
    ),
    "layoutlm": Family(
        "LayoutLM", "LayoutLMConfig", _NO_DROPOUT,
        "always makes an attention mask; its texts have no boxes here",
    ),
}  # fmt: skip
"""Encoders whose attention cannot be replaced: they are fine-tuned on padded rows."""

REFUSED: dict[str, Family] = {
    "stablelm": Family("StableLM", "StableLmConfig", _GROUPED, ""),
    "nemotron": Family("Nemotron", "NemotronConfig", _GROUPED, ""),
    "gpt_neo": Family(
        "GPT-Neo", "GPTNeoConfig",
        {
            "vocab_size": 97, "hidden_size": 32, "num_layers": 2, "num_heads": 4,
            "attention_types": [[["global"], 2]], "bos_token_id": 1, "eos_token_id": 2,
        },
        "",
    ),
    "bloom": Family(
        "BLOOM", "BloomConfig", {"vocab_size": 97, "hidden_size": 32, "n_layer": 2, "n_head": 4}, ""
    ),
    "granite": Family("Granite", "GraniteConfig", {**_GROUPED, "logits_scaling": 3.0}, ""),
    "cohere": Family("Cohere", "CohereConfig", {**_GROUPED, "logit_scale": 0.25}, ""),
}  # fmt: skip
"""Families that are refused by name, before anything is trained."""


def tiny_config(family: str, **changes: object) -> PretrainedConfig:
    """Return the configuration of a family's small model, with changes."""
    import transformers

    chosen = {**FAMILIES, **PADDED_ONLY, **REFUSED}[family]
    settings = json.loads(json.dumps(chosen.settings))  # configurations change what they are given
    return getattr(transformers, chosen.config)(**{**settings, **changes})


def with_head(config: PretrainedConfig, *, seed: int = 1) -> PreTrainedModel:
    """Return transformers' own random model of a configuration, with its language-model head.

    Norms and biases are random too, so that none can be left out unseen.
    """
    import torch
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

    is_masked = type(config) in MODEL_FOR_MASKED_LM_MAPPING
    head = transformers.AutoModelForMaskedLM if is_masked else transformers.AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = head.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.eval()


def save_open(family: str, folder: Path, **changes: object) -> Path:
    """Write a small model of a family that reads both ways; see `save_family`."""
    from transformers import AutoConfig

    from biphasic.model.loading.configurations import open_both_ways

    save_family(family, folder, **changes)
    config = AutoConfig.from_pretrained(folder)
    open_both_ways(config)
    config.save_pretrained(folder)
    return folder


def save_family(
    family: str,
    folder: Path,
    *,
    tokenizer: TextTokenizer | None = None,
    seed: int = 1,
    **changes: object,
) -> Path:
    """Write a small model of a family in the hub's format, with its language-model head.

    Args:
        family: A key of `FAMILIES`, `PADDED_ONLY` or `REFUSED`.
        folder: Made if it is not there.
        tokenizer: Its files are written too, and the model has its vocabulary and special ids.
        seed: Of the weights.
        changes: To the configuration.

    Returns:
        The folder.
    """
    ids: dict[str, object] = {}
    if tokenizer is not None:
        special = tokenizer.special_ids
        ids = {f"{role}_token_id": special[role] for role in ("bos", "eos", "pad")}
        ids["vocab_size"] = tokenizer.vocab_size
        if family == "eurobert":
            ids["mask_token_id"] = special["mask"]
        if family == "modernbert":
            ids |= {"cls_token_id": special["bos"], "sep_token_id": special["eos"]}
    model = with_head(tiny_config(family, **{**ids, **changes}), seed=seed)
    chosen = {**FAMILIES, **PADDED_ONLY, **REFUSED}[family]
    model.save_pretrained(folder, max_shard_size=chosen.shard_size)
    if tokenizer is not None:
        tokenizer.save(folder)
    return folder


@contextmanager
def replaced_attention(changed: Callable[..., Any]) -> Iterator[None]:
    """Let models attend by another function, which gets ours before its arguments."""
    from biphasic.model.compute import attention

    original = attention.packed_attention
    attention.packed_attention = partial(changed, original)  # type: ignore[assignment]
    attention.register_attention()
    try:
        yield
    finally:
        attention.packed_attention = original
        attention.register_attention()


def record(family: str, column: Column, value: float | str) -> None:
    """Note what was measured of a family, for the table in the documentation.

    Args:
        family: A key of `FAMILIES` or `REFUSED`.
        column: Of the table.
        value: Largest absolute difference from the reference, of which the table shows the worst;
            or words: `kept`, `none` where transformers has nothing to compare with, `refused: ...`.
    """
    path = os.environ.get(RECORDS)
    if path:
        line = json.dumps({"family": family, "column": column, "value": value})
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
