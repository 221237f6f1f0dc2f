"""Adds the sentence-transformers files to a model folder: modules and mean pooling."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from biphasic.files import write_json

_POOLING = "1_Pooling"


def write_sentence_transformers(
    folder: Path, *, hidden_size: int, max_seqlen: int, prompts: Mapping[str, str] | None = None
) -> None:
    """Add the files with which `SentenceTransformer(folder)` averages the states of all tokens."""
    # Names of modules and settings are those that releases since 2.2 read.
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": _POOLING, "type": "sentence_transformers.models.Pooling"},
    ]
    pooling = {
        "word_embedding_dimension": hidden_size,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": True,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    reading = {
        "max_seq_length": max_seqlen,
        "do_lower_case": False,
        "tokenizer_args": {"split_special_tokens": True},
    }
    settings = {
        "prompts": dict(prompts or {}),
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    }
    write_json(folder / "modules.json", modules)
    write_json(folder / _POOLING / "config.json", pooling)
    write_json(folder / "sentence_bert_config.json", reading)
    write_json(folder / "config_sentence_transformers.json", settings)
