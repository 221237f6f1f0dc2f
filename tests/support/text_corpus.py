"""Corpora of given (id, text) pairs, made in this process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from biphasic.data.corpus import Corpus, assemble_corpus
from biphasic.data.tokens.shards import (
    BLOCK_BYTES,
    Block,
    ShardContent,
    read_shard,
    token_dtype,
    write_shard,
)
from biphasic.data.tokens.tokenizer import TextTokenizer


def blocks(
    documents: Iterable[tuple[str, str]], *, block_bytes: int = BLOCK_BYTES
) -> Iterator[Block]:
    """Group (id, text) pairs into blocks without notes."""
    block = Block()
    for document_id, text in documents:
        block.add(document_id, text)
        if block.num_bytes >= block_bytes:
            yield block
            block = Block()
    if block.documents:
        yield block


def write_corpus(
    folder: Path,
    documents: Iterable[tuple[str, str]],
    tokenizer: TextTokenizer,
    *,
    provenance: dict[str, Any],
    block_bytes: int = BLOCK_BYTES,
) -> Corpus:
    """Tokenize (id, text) pairs into a corpus folder, and open it; empty documents are skipped."""

    def tokenized(work: Path) -> Iterator[ShardContent]:
        for number, block in enumerate(blocks(documents, block_bytes=block_bytes)):
            write_shard(work / f"{number:05d}", block, tokenizer)
            yield from read_shard(work / f"{number:05d}")

    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".partial-shards-", dir=folder.parent) as work:
        assemble_corpus(
            folder,
            tokenized(Path(work)),
            tokenizer_sha256=tokenizer.sha256,
            dtype=token_dtype(tokenizer.vocab_size),
            vocab_size=tokenizer.vocab_size,
            provenance=provenance,
        )
    return Corpus(folder)
