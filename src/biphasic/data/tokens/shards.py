"""Blocks of documents, and the shards made by tokenizing them.

A shard is a complete folder, named by the hash of its inputs: `tokens.bin`, ids of all documents
end to end; `index.npy`, int64 [num_documents, num_notes + 2], the notes of each, its characters and
its tokens; and `documents.jsonl`, the id of each.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from biphasic.data.tokens.pieces import piece_encoder
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.store import complete_folder

BLOCK_BYTES = 1 << 24  # text of a block, in bytes of UTF-8: some seconds of work for one core
SHARD_VERSION = 1  # increase by hand whenever the same block would give a different shard
TOKENS, INDEX, NAMES = "tokens.bin", "index.npy", "documents.jsonl"
CHARACTERS, LENGTHS = -2, -1  # columns of the index, after the notes
# A file that starts with token ids; the documents' lengths in it, int64 [num_documents], zero for
# empty ones; and the line of each document's id, of which there may be more.
ShardContent = tuple[Path, NDArray[np.int64], Iterable[bytes]]
# Text tokenized at once: the tokenizer's records need many times the text's memory.
_BATCH_CHARACTERS = 1 << 18


def token_dtype(vocab_size: int) -> str:
    """Return the narrowest integer type for a vocabulary."""
    return "<u2" if vocab_size <= 1 << 16 else "<u4"


@dataclass(frozen=True)
class DocumentBatch:
    """Documents tokenized together, as bytes."""

    notes: NDArray[np.int64]  # int64 [num_documents, num_notes]; passed on to the shard's index
    sizes: NDArray[np.int64]  # int64 [num_documents, 2]; bytes of each id and of each text
    content: bytes  # ids and texts in UTF-8: id, text, id, text, ...

    def __len__(self) -> int:
        return len(self.sizes)

    def documents(self) -> Iterator[tuple[str, str]]:
        """Yield (id, text) pairs."""
        start = 0
        for id_bytes, text_bytes in self.sizes.tolist():
            middle = start + id_bytes
            end = middle + text_bytes
            yield self.content[start:middle].decode(), self.content[middle:end].decode()
            start = end

    def key(self, tokenizer_sha256: str) -> str:
        """Return the name of the shard that a tokenizer makes from this block."""
        version = importlib.metadata.version("tokenizers")
        header = [SHARD_VERSION, version, tokenizer_sha256, *self.notes.shape]
        hasher = hashlib.sha256(json.dumps(header).encode())
        for part in (self.notes.tobytes(), self.sizes.tobytes(), self.content):
            hasher.update(part)
        return hasher.hexdigest()[:40]


class BatchBuilder:
    """Collects documents until there are enough for a block."""

    def __init__(self, block_bytes: int = BLOCK_BYTES) -> None:
        self._block_bytes = block_bytes
        self._begin()

    def _begin(self) -> None:
        self._parts: list[bytes] = []
        self._notes: list[Sequence[int]] = []
        self._num_bytes = 0

    @property
    def is_full(self) -> bool:
        """Return whether the block has reached its size."""
        return self._num_bytes >= self._block_bytes

    def add(self, document_id: str, text: str, notes: Sequence[int] = ()) -> None:
        """Add a document."""
        self._parts += (document_id.encode(), text.encode())
        self._notes.append(notes)
        self._num_bytes += len(self._parts[-1])

    def take(self) -> DocumentBatch | None:
        """Return the collected documents, if any, and clear the collection."""
        if not self._parts:
            return None
        sizes = np.array([len(part) for part in self._parts], dtype=np.int64)
        block = DocumentBatch(
            notes=np.array(self._notes, dtype=np.int64).reshape(len(self._notes), -1),
            sizes=sizes.reshape(-1, 2),
            content=b"".join(self._parts),
        )
        self._begin()
        return block


def write_shard(folder: Path, block: DocumentBatch, tokenizer: TextTokenizer) -> None:
    """Tokenise a block into a shard's folder, which appears once it is complete."""
    dtype = token_dtype(tokenizer.vocab_size)
    encoder, token_bytes = piece_encoder(tokenizer, dtype), np.dtype(dtype).itemsize
    characters: list[int] = []
    lengths: list[int] = []
    with complete_folder(folder) as partial:
        with (
            (partial / TOKENS).open("wb") as tokens,
            (partial / NAMES).open("w", encoding="utf-8") as names,
        ):
            for batch in text_batches(block.documents(), characters=_BATCH_CHARACTERS):
                texts = [text for _, text in batch]
                for ids in encoder.encode(texts):
                    tokens.write(ids)
                    lengths.append(len(ids) // token_bytes)
                characters += map(len, texts)
                names.writelines(json.dumps(document_id) + "\n" for document_id, _ in batch)
        columns = np.array([characters, lengths], dtype=np.int64).T
        np.save(partial / INDEX, np.hstack([block.notes, columns]))


def read_shard(folder: Path, num_documents: int | None = None) -> Iterator[ShardContent]:
    """Yield the content of a shard, up to a number of documents, while its files are open."""
    lengths = np.load(folder / INDEX, mmap_mode="r")[:num_documents, LENGTHS]
    with (folder / NAMES).open("rb") as names:
        yield folder / TOKENS, lengths, names


def text_batches(
    texts: Iterable[tuple[str, str]], *, characters: int, most: int | None = None
) -> Iterator[list[tuple[str, str]]]:
    """Yield ids and texts in batches; one ends with so many characters, or as many texts."""
    batch: list[tuple[str, str]] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text[1])
        if size >= characters or len(batch) == most:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
