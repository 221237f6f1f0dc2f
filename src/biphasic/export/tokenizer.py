"""Tokenizers that give to everyone's `AutoTokenizer` the ids that training and tasks read.

Inputs are BOS, text, EOS; a question with its context is BOS, question, line break, context, EOS
(`tasks/windows.py`). Both are written into `tokenizer.json` as its post-processor.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from biphasic.data.tokenizer import TextTokenizer
from biphasic.files import read_json

_VOCABULARY = "tokenizer.json"
_SETTINGS = "tokenizer_config.json"
_SEPARATOR = "\n"
# Post-processors that correct offsets and add nothing; RoBERTa's does both.
_OFFSETS = "ByteLevel"
_ROBERTA = "RobertaProcessing"


def write_tokenizer(tokenizer: TextTokenizer, folder: Path, *, max_seqlen: int | None) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`.

    Args:
        tokenizer: With all special tokens that the model is to have.
        folder: An existing folder.
        max_seqlen: Longest input in tokens, special ones included; None where there is no limit.
    """
    tokenizer.save(folder)
    vocabulary = read_json(folder / _VOCABULARY)
    vocabulary["post_processor"] = _post_processor(vocabulary.get("post_processor"), tokenizer)
    for added in vocabulary["added_tokens"]:
        if added["id"] == tokenizer.special_ids.get("mask"):
            # Training hides a token with the space before it: "reads <mask>" must not keep one.
            added["lstrip"] = True
    text = json.dumps(vocabulary, ensure_ascii=False, indent=1)
    (folder / _VOCABULARY).write_text(text + "\n", encoding="utf-8")
    settings = read_json(folder / _SETTINGS)
    settings.update(padding_side="right", truncation_side="right")
    if max_seqlen is not None:
        settings["model_max_length"] = max_seqlen
    (folder / _SETTINGS).write_text(
        json.dumps(settings, indent=1, sort_keys=True) + "\n", encoding="utf-8"
    )


def pair_ids(tokenizer: TextTokenizer, first: str, second: str) -> list[int]:
    """Return the ids of a question and its context, uncut."""
    framed = [tokenizer.bos_id, *tokenizer.encode(first), *separator_ids(tokenizer)]
    return [*framed, *tokenizer.encode(second), tokenizer.eos_id]


def separator_ids(tokenizer: TextTokenizer) -> list[int]:
    """Return what stands between question and context."""
    return tokenizer.encode(_SEPARATOR) or [tokenizer.eos_id]


def _post_processor(given: dict[str, Any] | None, tokenizer: TextTokenizer) -> dict[str, Any]:
    """Return the template, behind what the tokenizer had to correct offsets with."""
    template = _template(tokenizer)
    offsets = _offset_parts(given)
    return {"type": "Sequence", "processors": [*offsets, template]} if offsets else template


def _offset_parts(given: dict[str, Any] | None) -> list[dict[str, Any]]:
    if given is None:
        return []
    if given["type"] == "Sequence":
        return [kept for part in given["processors"] for kept in _offset_parts(part)]
    if given["type"] == _OFFSETS:
        return [given]
    if given["type"] == _ROBERTA:
        kept = {name: given[name] for name in ("trim_offsets", "add_prefix_space")}
        return [{"type": _OFFSETS, **kept, "use_regex": True}]
    return []


def _template(tokenizer: TextTokenizer) -> dict[str, Any]:
    names = {token_id: token for token, token_id in tokenizer.vocabulary().items()}
    tokens = tokenizer.special_tokens
    parts = {
        tokens["bos"]: [tokenizer.bos_id],
        tokens["eos"]: [tokenizer.eos_id],
        _SEPARATOR: separator_ids(tokenizer),
    }
    begin, end, between = (
        {"SpecialToken": {"id": name, "type_id": 0}}
        for name in (tokens["bos"], tokens["eos"], _SEPARATOR)
    )
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [begin, first, end],
        "pair": [begin, first, between, second, end],
        "special_tokens": {
            name: {"id": name, "ids": ids, "tokens": [names[token_id] for token_id in ids]}
            for name, ids in parts.items()
        },
    }
