"""The mask-token doctor: finds an id to stand for hidden tokens, and checks that no text has it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from biphasic.data.corpus import Corpus
from biphasic.data.tokens.tokenizer import MASK, TextTokenizer
from biphasic.errors import DataError

# Names that vocabularies give to entries kept free for later. Not among them are names whose
# entries some models were trained with after all: `<|fim_prefix|>` and its like, T5's
# `<extra_id_0>`, and the `<reserved_106>`, `[UNUSED_TOKEN_145]` and `<SPECIAL_10>` that mark turns
# of chats for Baichuan, InternLM and Nemotron.
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
    """Which token is to stand for hidden ones."""

    token: str
    token_id: int
    reason: str
    """One sentence: what it is and why it was chosen."""
    is_new: bool
    """Whether it is appended to the vocabulary, so that models get one row more."""


def choose_mask_token(tokenizer: TextTokenizer) -> MaskChoice:
    """Choose a tokenizer's mask token.

    That is the declared one, unless it has another role too; else the first entry that the
    vocabulary keeps free and that no text can spell; else a new one.
    """
    declared = tokenizer.special_tokens.get("mask")
    also = [role for role, token in tokenizer.special_tokens.items() if token == declared]
    if also == ["mask"]:
        reason = f"the tokenizer declares {declared} as its mask token"
        return MaskChoice(str(declared), tokenizer.mask_id, reason, is_new=False)
    unfit = f"the declared {declared} is the {also[0]} token as well; " if also else ""
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
            f"{choice.token_id}: it was chosen for another one; choose again"
        )
    return changed


def refuse_if_present(corpus: Corpus | Path, mask_id: int) -> None:
    """Refuse a mask token that some document of a corpus holds as text.

    Args:
        corpus: A corpus, or its folder.
        mask_id: The id that is to stand for hidden tokens.

    Raises:
        DataError: It occurs; the message names the first document and what to do.
        CheckpointError: The folder is damaged.
    """
    corpus = corpus if isinstance(corpus, Corpus) else Corpus(corpus)
    num_before = 0
    for _, tokens, lengths in corpus.shards():
        document = find_token(mask_id, tokens, lengths)
        if document is not None:
            document += num_before
            name = json.loads(next(islice(corpus.names(), document, None)))
            raise DataError(f"{corpus.folder}: {holds_mask(name, mask_id)}")
        num_before += len(lengths)


def find_token(
    token_id: int, tokens: NDArray[np.integer], lengths: NDArray[np.int64]
) -> int | None:
    """Return the number of the first document that holds an id; None if there is none.

    Args:
        token_id: What to look for.
        tokens: Documents end to end; may be a memory map.
        lengths: int64 [num_documents], in tokens.
    """
    for start in range(0, len(tokens), _BLOCK_TOKENS):
        found = np.flatnonzero(tokens[start : start + _BLOCK_TOKENS] == token_id)
        if len(found):
            place = start + int(found[0])
            return int(np.searchsorted(np.cumsum(lengths), place, side="right"))
    return None


def count_special_tokens(corpus: Corpus, tokenizer: TextTokenizer) -> dict[str, int]:
    """Count the special tokens that a corpus's documents hold as text, beside the mask.

    Some vocabularies give a special token's id to text that spells it.

    Returns:
        Tokens that occur, and how often.
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


def holds_mask(document_id: str, mask_id: int) -> str:
    """Say that a document holds the mask token, and what to do."""
    return (
        f"document '{document_id}' holds the mask token (id {mask_id}), so hidden tokens could not "
        "be told from text; leave out documents that spell it, or take another tokenizer"
    )


def _candidates(tokenizer: TextTokenizer, vocabulary: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Yield entries that could serve, the best first, each with the reason to take it."""
    taken = set(tokenizer.special_tokens.values())
    for token in _MASK_NAMES:
        if token in vocabulary and token not in taken:
            yield token, f"the vocabulary has {token}, although nothing declares it"
    reserved = [token for token in vocabulary if _RESERVED.fullmatch(token) and token not in taken]
    for token in sorted(reserved, key=vocabulary.__getitem__):
        yield token, f"the vocabulary keeps {token} free for uses such as this"


def _can_be_spelt(tokenizer: TextTokenizer, token: str) -> bool:
    """Tell whether text with this spelling would get the token's id, as in Unigram vocabularies."""
    masked = tokenizer.with_mask(token)
    return any(masked.mask_id in masked.encode(text) for text in (token, f"a {token} b{token}"))


def _new_name(vocabulary: dict[str, int]) -> str:
    names = (f"<|mask_{number}|>" for number in range(1, len(vocabulary) + 2))
    return next(name for name in (MASK, *names) if name not in vocabulary)
