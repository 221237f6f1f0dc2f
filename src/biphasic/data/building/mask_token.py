"""Chooses a mask token for a tokenizer, and checks that no text contains it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from biphasic.data.corpus import Corpus
from biphasic.data.tokens.tokenizer import MASK, TextTokenizer
from biphasic.errors import DataError

# Names of unused vocabulary entries. Names that some models were trained with after all are
# excluded: `<|fim_prefix|>` and the like, T5's `<extra_id_0>`, and `<reserved_106>`,
# `[UNUSED_TOKEN_145]` and `<SPECIAL_10>`, which mark chat turns for Baichuan, InternLM and
# Nemotron.
_RESERVED = re.compile(
    r"""
      <\|reserved_(?:special_)?token_\d+\|>    # Llama 3, Kimi
    | <unused\d+> | \[unused\d+\]             # Gemma, BERT
    | >>UNUSED_\d+<<                           # Falcon 3
    | <\|placeholder\d+\|> | <\|dummy_\d+\|>   # Phi
    | \[control_\d+\]                          # Mistral
    """,
    re.VERBOSE,
)
_MASK_NAMES = (MASK, "<mask>", "[MASK]")
_BLOCK_TOKENS = 1 << 22


@dataclass(frozen=True, slots=True)
class MaskChoice:
    """The chosen mask token."""

    token: str
    token_id: int
    reason: str
    """One sentence: what it is and why it was chosen."""
    is_new: bool
    """Whether it is added to the vocabulary, so the embedding grows by one row."""


def choose_mask_token(tokenizer: TextTokenizer) -> MaskChoice:
    """Choose a tokenizer's mask token.

    It is the declared one, unless that has another role; otherwise the first unused entry that no
    text can spell; otherwise a new one.
    """
    declared = tokenizer.special_tokens.get("mask")
    also = [role for role, token in tokenizer.special_tokens.items() if token == declared]
    if also == ["mask"]:
        reason = f"the tokenizer declares {declared} as its mask token"
        return MaskChoice(str(declared), tokenizer.mask_id, reason, is_new=False)
    unfit = f"the declared {declared} is also the {also[0]} token; " if also else ""
    vocabulary = tokenizer.vocabulary()
    for token, why in _candidates(tokenizer, vocabulary):
        if not _can_be_spelt(tokenizer, token):
            return MaskChoice(token, vocabulary[token], unfit + why, is_new=False)
    token = _new_name(vocabulary)
    reason = (
        f"{unfit}the vocabulary keeps no entry free, so {token} is appended; the model gets one "
        "row more"
    )
    return MaskChoice(token, tokenizer.with_mask(token).mask_id, reason, is_new=True)


def with_mask_token(tokenizer: TextTokenizer, choice: MaskChoice) -> TextTokenizer:
    """Return the tokenizer with the chosen mask token declared.

    Raises:
        DataError: The choice was made for another tokenizer.
    """
    if tokenizer.special_tokens.get("mask") == choice.token:
        changed = tokenizer
    else:
        changed = tokenizer.with_mask(choice.token)
    if changed.mask_id != choice.token_id:
        raise DataError(
            f"mask token {choice.token} has id {changed.mask_id} in this tokenizer, not "
            f"{choice.token_id}: it was chosen for another tokenizer; choose again"
        )
    return changed


def refuse_if_present(corpus: Corpus, mask_id: int) -> None:
    """Raise an error if a document of a corpus contains the mask token.

    Raises:
        DataError: It occurs; the message names the first document and a remedy.
    """
    document = find_token(mask_id, corpus)
    if document is not None:
        name = json.loads(next(islice(corpus.names(), document, None)))
        raise DataError(
            f"{corpus.folder}: document '{name}' contains the mask token (id {mask_id}), so hidden "
            "tokens and text would look the same; remove documents that spell it, or use another "
            "tokenizer"
        )


def find_token(token_id: int, corpus: Corpus) -> int | None:
    """Return the index of the first document that contains an id; None if there is none."""
    num_before = 0
    for _, tokens, lengths in corpus.shards():
        for start in range(0, len(tokens), _BLOCK_TOKENS):
            positions = np.flatnonzero(tokens[start : start + _BLOCK_TOKENS] == token_id)
            if len(positions):
                place = start + int(positions[0])
                return num_before + int(np.searchsorted(np.cumsum(lengths), place, side="right"))
        num_before += len(lengths)
    return None


def count_special_tokens(corpus: Corpus, tokenizer: TextTokenizer) -> dict[str, int]:
    """Count the special tokens in a corpus's documents, except the mask token.

    Some vocabularies map text that spells a special token to the token's id.

    Returns:
        Counts by token, without zeros.
    """
    tokens_by_id = {
        tokenizer.special_ids[role]: token
        for role, token in tokenizer.special_tokens.items()
        if role != "mask"
    }
    counts = Counter[str]()
    for _, tokens, _ in corpus.shards():
        for start in range(0, len(tokens), _BLOCK_TOKENS):
            block = tokens[start : start + _BLOCK_TOKENS]
            for token_id, token in tokens_by_id.items():
                counts[token] += int(np.count_nonzero(block == token_id))
    return {token: count for token, count in counts.items() if count}


def _candidates(tokenizer: TextTokenizer, vocabulary: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Yield candidates, the best first, each with a reason."""
    taken = set(tokenizer.special_tokens.values())
    for token in _MASK_NAMES:
        if token in vocabulary and token not in taken:
            yield token, f"the vocabulary has {token}, although it is not declared"
    reserved = [token for token in vocabulary if _RESERVED.fullmatch(token) and token not in taken]
    for token in sorted(reserved, key=vocabulary.__getitem__):
        yield token, f"the vocabulary reserves {token} for uses like this"


def _can_be_spelt(tokenizer: TextTokenizer, token: str) -> bool:
    """Return whether text can spell the token and get its id, as in Unigram vocabularies."""
    masked = tokenizer.with_mask(token)
    return any(masked.mask_id in masked.encode(text) for text in (token, f"a {token} b{token}"))


def _new_name(vocabulary: dict[str, int]) -> str:
    names = (f"<|mask_{number}|>" for number in range(1, len(vocabulary) + 2))
    return next(name for name in (MASK, *names) if name not in vocabulary)
