"""Writing tokenizers for `AutoTokenizer`, with the ids used in training and tasks."""

from __future__ import annotations

from pathlib import Path

from biphasic.data.tokens.tokenizer import TextTokenizer


def write_tokenizer(tokenizer: TextTokenizer, folder: Path, *, max_seqlen: int | None) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`.

    `max_seqlen` counts tokens, including special ones; None sets no limit.
    """
    limit = {} if max_seqlen is None else {"model_max_length": max_seqlen}
    tokenizer.save_framed(folder, padding_side="right", truncation_side="right", **limit)


def pair_ids(tokenizer: TextTokenizer, first: str, second: str) -> list[int]:
    """Return the ids of a question and its context, not cut."""
    framed = [tokenizer.bos_id, *tokenizer.encode(first), *tokenizer.separator_ids]
    return [*framed, *tokenizer.encode(second), tokenizer.eos_id]
