"""Chooses a mask token for a tokenizer, and checks that no text contains it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import numpy as np

from biphasic.data.corpus import Corpus, token_blocks
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


def with_mask_token(tokenizer: TextTokenizer) -> tuple[TextTokenizer, str]:
    """Return a tokenizer that declares a mask token, and a sentence: what it is and why.

    It is the declared one, unless that has another role; otherwise the first unused entry that no
    text can spell; otherwise a new one.
    """
    declared = tokenizer.special_tokens.get("mask")
    also = [role for role, token in tokenizer.special_tokens.items() if token == declared]
    # Some vocabularies declare one token for several roles. Masked places would then look like
    # padding or like the end of a text.
    if also == ["mask"]:
        return tokenizer, f"the tokenizer declares {declared} as its mask token"
    unfit = f"the declared {declared} is also the {also[0]} token; " if also else ""
    vocabulary = tokenizer.vocabulary()
    for token, why in _candidates(tokenizer, vocabulary):
        masked = tokenizer.with_mask(token)
        # In Unigram vocabularies, text can spell a token and get its id.
        # Alone, between spaces and after a letter: rules for spaces differ between tokenizers.
        texts = (token, f"a {token} b{token}")
        if not any(masked.mask_id in masked.encode(text) for text in texts):
            return masked, unfit + why
    # One more than there are entries, so a free name is among them.
    names = (f"<|mask_{number}|>" for number in range(1, len(vocabulary) + 2))
    token = next(name for name in (MASK, *names) if name not in vocabulary)
    row = "it gets a spare row of the embedding, or a new one"
    reason = f"{unfit}no unused token, so {token} is added; {row}"
    return tokenizer.with_mask(token), reason


def refuse_if_present(corpus: Corpus, mask_id: int) -> None:
    """Raise an error if a document of a corpus contains the mask token."""
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
        # In blocks: comparing a whole shard would make an array of its length.
        for start, block in token_blocks(tokens):
            positions = np.flatnonzero(block == token_id)
            if len(positions):
                place = start + int(positions[0])
                return num_before + int(np.searchsorted(np.cumsum(lengths), place, side="right"))
        num_before += len(lengths)
    return None


def count_special_tokens(corpus: Corpus, tokenizer: TextTokenizer) -> dict[str, int]:
    """Count the special tokens but the mask in a corpus, and its unknown token."""
    # Some vocabularies map text that spells a special token to the token's id.
    tokens_by_id = {
        tokenizer.special_ids[role]: token
        for role, token in tokenizer.special_tokens.items()
        if role != "mask"
    }
    if unknown := tokenizer.unknown_token:
        tokens_by_id[tokenizer.vocabulary()[unknown]] = unknown
    counts = Counter[str]()
    for _, tokens, _ in corpus.shards():
        for _, block in token_blocks(tokens):
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
