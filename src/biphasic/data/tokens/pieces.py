"""Token ids of much text: pieces of it, mostly words, are tokenized once and looked up afterwards.

The tokenizers library keeps ids of words, too, but searches each text for words anew and makes a
record of each token. Texts are cut only where the tokenizer itself divides any text, so ids are the
same. Tokenizers with rules that are not known here tokenise whole texts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from biphasic.data.tokens.tokenizer import TextTokenizer

# Each pattern below begins a new word before a single space, and before punctuation after a letter.
_CUT = re.compile(r"(?<=\S)(?= \S)|(?<=[A-Za-z])(?=[\n.,;:!?])")
# By normalizer, the added tokens that normalized text spells only where the text itself does.
_SPELLED = {None: r"(?s:.*)", "NFC": r"[\x00-\x7f]*", "BertNormalizer": r"[!-~]*"}
_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PATTERNS = (_LLAMA_3, _LLAMA_3.replace("{1,3}", ""))  # the latter is Qwen 2's
_MOST_CHARACTERS = 1 << 21  # of the pieces that are kept, with their ids some 50 MB


class PieceEncoder:
    """Tokenizes texts as a tokenizer does, and keeps the ids of their pieces."""

    def __init__(self, tokenizer: TextTokenizer, dtype: str) -> None:
        """Give ids as numbers of type `dtype`."""
        self._tokenizer, self._dtype = tokenizer, dtype
        self._cuts = _may_cut(tokenizer.rules())
        self._known: dict[str, bytes] = {}
        self._num_characters = 0

    def encode(self, texts: Sequence[str]) -> list[bytes]:
        """Return the ids of each text, end to end."""
        if not self._cuts:
            return self._encoded(texts)
        known = self._known
        divided = [_CUT.split(text) for text in texts]
        new = list({piece for pieces in divided for piece in pieces if piece not in known})
        if 2 * len(new) > sum(map(len, divided)):
            return self._encoded(texts)  # a new piece takes twice the time of its part of a text
        known.update(zip(new, self._encoded(new), strict=True))
        self._num_characters += sum(map(len, new))
        if self._num_characters > _MOST_CHARACTERS:
            self._known, self._num_characters = {}, 0
        return [b"".join(map(known.__getitem__, pieces)) for pieces in divided]

    def _encoded(self, texts: Sequence[str]) -> list[bytes]:
        return [np.array(ids, self._dtype).tobytes() for ids in self._tokenizer.encode_many(texts)]


@lru_cache(maxsize=1)
def piece_encoder(tokenizer: TextTokenizer, dtype: str) -> PieceEncoder:
    """Return the encoder of a tokenizer, with the pieces that it knows."""
    return PieceEncoder(tokenizer, dtype)


def _may_cut(rules: dict[str, Any]) -> bool:
    """Return whether a tokenizer with these rules divides every text at the cuts."""
    normalizer = (rules.get("normalizer") or {}).get("type")
    splitter = rules.get("pre_tokenizer") or {}
    *first, last = splitter.get("pretokenizers") or [splitter]
    is_divided = any(map(_has_pattern, first))
    return (
        normalizer in _SPELLED
        and all(rule.get("type") == "Digits" or _has_pattern(rule) for rule in first)
        and (
            last.get("type") == "BertPreTokenizer"
            # BertNormalizer changes white space, which only BERT's words lack.
            or (normalizer != "BertNormalizer" and _is_byte_level(last, is_divided=is_divided))
        )
        and not any(_crosses(token, normalizer) for token in rules["added_tokens"])
    )


def _has_pattern(rule: dict[str, Any]) -> bool:
    return (
        rule.get("type") == "Split"
        and rule["pattern"].get("Regex") in _PATTERNS
        and rule["behavior"] == "Isolated"
    )


def _is_byte_level(rule: dict[str, Any], *, is_divided: bool) -> bool:
    """Return whether a rule writes words, which it or the rules before it divide, in bytes."""
    return (
        rule.get("type") == "ByteLevel"
        and not rule["add_prefix_space"]  # before each word that another rule has divided
        and (is_divided or rule["use_regex"])
    )


def _crosses(token: dict[str, Any], normalizer: str | None) -> bool:
    """Return whether looking for an added token in pieces may differ from looking in whole text."""
    content = token["content"]
    if token["normalized"] and not re.fullmatch(_SPELLED[normalizer], content):
        return True
    cuts = (cut.start() for cut in _CUT.finditer(f"x{content}x"))
    # Where text spells a special token it stays text, but other tokens are not looked for there.
    is_inside = any(1 < cut <= len(content) for cut in cuts)
    return is_inside or (not token["special"] and (token["rstrip"] or token["single_word"]))
