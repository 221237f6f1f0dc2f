"""Writes rules into `tokenizer.json` that make `AutoTokenizer` frame texts as we do.

Inputs are BOS, text, EOS; a question with its context is BOS, question, line break, context, EOS
(`tasks/kinds/questions.py`). Both are written as the post-processor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_SEPARATOR = "\n"
# Post-processors that correct offsets and add nothing; RoBERTa's does both.
_OFFSETS = "ByteLevel"
_ROBERTA = "RobertaProcessing"
_PREPEND = "Prepend"
_STRIP = "Strip"
# Settings with which pre-tokenizers put no space before a text.
_NO_SPACE = {"Metaspace": {"prepend_scheme": "never"}, "ByteLevel": {"add_prefix_space": False}}

Rules = dict[str, Any]  # the content of `tokenizer.json`


def framed(
    rules: Rules,
    special_tokens: Mapping[str, str],
    *,
    vocabulary: Mapping[str, int],
    separator: Sequence[int],
) -> Rules:
    """Return rules that add BOS and EOS.

    `special_tokens` are tokens by role: bos, eos and, if there is one, mask. `separator` are the
    ids between a question and its context.
    """
    template = _template(special_tokens, vocabulary, separator)
    offsets = _offset_parts(rules.get("post_processor"))
    whole = {"type": "Sequence", "processors": [*offsets, template]} if offsets else template
    # Training hides a token with its leading space: "reads <mask>" must not keep one. A rule that
    # begins all text with a space gives the text after the mask one, too: it must be the only one.
    strips = {"lstrip": True} | ({"rstrip": True} if _prepends(rules) else {})
    return _with(rules, post_processor=whole, mask=special_tokens.get("mask"), strips=strips)


def own_part(rules: Rules, mask: str | None) -> Rules:
    """Return the part that `framed` replaces, for `unframed`."""
    added = next((token for token in rules["added_tokens"] if token["content"] == mask), {})
    strips = ("lstrip", "rstrip") if _prepends(rules) else ("lstrip",)
    own = {f"mask_{side}": added.get(side, False) for side in strips}
    return {"post_processor": rules.get("post_processor"), **own}


def unframed(rules: Rules, own: Rules, mask: str | None) -> Rules:
    """Undo `framed`."""
    strips = {side: own[key] for side in ("lstrip", "rstrip") if (key := f"mask_{side}") in own}
    return _with(rules, post_processor=own["post_processor"], mask=mask, strips=strips)


def continuing(rules: Rules) -> Rules:
    """Return rules for text after another text: no space before it is added or taken away."""
    normalizers = _normalizers(rules.get("normalizer"))
    parts = [
        part | {"strip_left": False} if part["type"] == _STRIP else part
        for part in normalizers
        if part["type"] != _PREPEND
    ]
    changed = rules | {"pre_tokenizer": _without_space(rules.get("pre_tokenizer"))}
    if parts != normalizers:
        changed["normalizer"] = {"type": "Sequence", "normalizers": parts}
    return changed


def _without_space(splitter: Rules | None) -> Rules | None:
    """Return a pre-tokenizer that puts no space before a text, if its first part does that."""
    # A later part puts a space before each piece, also where training reads one.
    if splitter is None:
        return None
    if splitter["type"] == "Sequence" and splitter["pretokenizers"]:
        first, *others = splitter["pretokenizers"]
        return splitter | {"pretokenizers": [_without_space(first), *others]}
    return splitter | _NO_SPACE.get(splitter["type"], {})


def _prepends(rules: Rules) -> bool:
    """Return whether a normalizer begins each text, also after a mask, with a space (Llama 2)."""
    return any(part["type"] == _PREPEND for part in _normalizers(rules.get("normalizer")))


def _normalizers(rules: Rules | None) -> list[Rules]:
    if rules is None:
        return []
    if rules["type"] == "Sequence":
        return [part for rule in rules["normalizers"] for part in _normalizers(rule)]
    return [rules]


def _with(
    rules: Rules, *, post_processor: Rules | None, mask: str | None, strips: Mapping[str, bool]
) -> Rules:
    added = [
        {**token, **strips} if token["content"] == mask else token
        for token in rules["added_tokens"]
    ]
    return {**rules, "added_tokens": added, "post_processor": post_processor}


def _offset_parts(rules: Rules | None) -> list[Rules]:
    """Return the parts of a post-processor that correct offsets."""
    if rules is None:
        return []
    if rules["type"] == "Sequence":
        return [
            part_offsets for part in rules["processors"] for part_offsets in _offset_parts(part)
        ]
    if rules["type"] == _OFFSETS:
        return [rules]
    if rules["type"] == _ROBERTA:
        part_offsets = {name: rules[name] for name in ("trim_offsets", "add_prefix_space")}
        return [{"type": _OFFSETS, **part_offsets, "use_regex": True}]
    return []


def _template(
    tokens: Mapping[str, str], vocabulary: Mapping[str, int], separator: Sequence[int]
) -> Rules:
    names = {token_id: token for token, token_id in vocabulary.items()}
    parts = {
        tokens["bos"]: [vocabulary[tokens["bos"]]],
        tokens["eos"]: [vocabulary[tokens["eos"]]],
        _SEPARATOR: list(separator),
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
