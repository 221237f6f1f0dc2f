"""Tokenised documents on disk: memory-mapped, immutable, identified by their ordered content.

Layout of a corpus folder (see docs/formats.md):

- `tokens-00000.bin`, ...: token ids, little-endian uint16 or uint32, documents end to end;
- `lengths.npy`: int64 [num_documents];
- `documents.jsonl`: one JSON string a line, the id of each document;
- `corpus.json`: dtype, counts, tokenizer hash, provenance, content hash;
- `manifest.json`: SHA-256 of every file.

Documents hold no special tokens: those are added when rows are laid out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from biphasic.data.tokenizer import TextTokenizer
from biphasic.errors import DataError
from biphasic.files import complete_folder, read_json, verify_folder, write_json

SHARD_TOKENS = 1 << 26
"""Tokens per shard at which a new one is begun: 128 MiB as uint16."""
_LENGTHS = "lengths.npy"
_DETAILS = "corpus.json"
_REMEDY = "delete the folder and build the corpus again"
_TOKENIZE_BATCH = 256


class Corpus:
    """Documents as token ids, read through memory maps.

    Attributes:
        lengths: int64 [num_documents], in tokens.
        content_hash: SHA-256 over the ordered documents' tokens and borders.
        details: What `corpus.json` says.
    """

    def __init__(self, folder: Path) -> None:
        """Open a corpus and check every file against its manifest.

        Raises:
            CheckpointError: A file is missing, truncated or changed.
        """
        self.folder = folder
        verify_folder(folder, remedy=_REMEDY)
        self.details: dict[str, Any] = read_json(folder / _DETAILS)
        self.content_hash: str = self.details["content_hash"]
        self.lengths: NDArray[np.int64] = np.load(folder / _LENGTHS)
        shard_documents: list[int] = self.details["shard_documents"]
        self._shards = [
            np.memmap(folder / _shard_name(index), dtype=self.details["dtype"], mode="r")
            for index in range(len(shard_documents))
        ]
        self._shard_of = np.repeat(np.arange(len(shard_documents)), shard_documents)
        self._starts = np.concatenate(
            [
                np.cumsum(lengths) - lengths
                for lengths in np.split(self.lengths, np.cumsum(shard_documents)[:-1])
            ]
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def num_tokens(self) -> int:
        """Tokens of all documents, special tokens excluded."""
        return int(self.lengths.sum())

    def tokens(self, document: int, start: int, end: int) -> NDArray[np.integer]:
        """Return the ids `start` to `end` of a document."""
        offset = int(self._starts[document])
        return self._shards[self._shard_of[document]][offset + start : offset + end]


def write_corpus(
    folder: Path,
    documents: Iterable[tuple[str, str]],
    tokenizer: TextTokenizer,
    *,
    provenance: dict[str, Any],
    shard_tokens: int = SHARD_TOKENS,
) -> None:
    """Tokenise (id, text) pairs into a corpus folder.

    Args:
        folder: Where the corpus appears once it is complete.
        documents: In the order that the corpus keeps; those without a token are left out.
        tokenizer: Any tokenizer.
        provenance: What to remember about the origin; JSON.
        shard_tokens: A shard is closed once it holds this many tokens.

    Raises:
        DataError: There is no document with a token.
    """
    dtype = "<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4"
    with complete_folder(folder) as partial:
        writer = _ShardWriter(partial, dtype, shard_tokens)
        with (partial / "documents.jsonl").open("w", encoding="utf-8") as names:
            for document_id, ids in _tokenize(documents, tokenizer):
                if ids:
                    writer.add(np.array(ids, dtype=dtype))
                    names.write(json.dumps(document_id) + "\n")
        counts = writer.close()
        if not counts["num_documents"]:
            raise DataError(f"{folder.name}: the corpus is empty; no document has any text")
        details = {
            "format": "biphasic.corpus/1",
            "dtype": dtype,
            "tokenizer_sha256": tokenizer.sha256,
            "provenance": provenance,
            **counts,
        }
        write_json(partial / _DETAILS, details)


class _ShardWriter:
    """Writes documents end to end, opens shards, and hashes what it writes."""

    def __init__(self, folder: Path, dtype: str, shard_tokens: int) -> None:
        self._folder, self._dtype, self._shard_tokens = folder, dtype, shard_tokens
        self._hash = hashlib.sha256(dtype.encode())
        self._lengths: list[int] = []
        self._shard_documents: list[int] = []
        self._room = 0
        self._stream: Any = None

    def add(self, ids: NDArray[np.integer]) -> None:
        if self._room <= 0:
            self._open_next()
        content = ids.tobytes()
        self._stream.write(content)
        self._hash.update(len(ids).to_bytes(8, "little") + content)
        self._lengths.append(len(ids))
        self._shard_documents[-1] += 1
        self._room -= len(ids)

    def close(self) -> dict[str, Any]:
        if self._stream:
            self._stream.close()
        np.save(self._folder / _LENGTHS, np.array(self._lengths, dtype=np.int64))
        return {
            "num_documents": len(self._lengths),
            "num_tokens": sum(self._lengths),
            "shard_documents": self._shard_documents,
            "content_hash": self._hash.hexdigest(),
        }

    def _open_next(self) -> None:
        if self._stream:
            self._stream.close()
        name = _shard_name(len(self._shard_documents))
        self._stream = (self._folder / name).open("wb")
        self._shard_documents.append(0)
        self._room = self._shard_tokens


def _tokenize(
    documents: Iterable[tuple[str, str]], tokenizer: TextTokenizer
) -> Iterator[tuple[str, Sequence[int]]]:
    pairs = iter(documents)
    while batch := list(islice(pairs, _TOKENIZE_BATCH)):
        names, texts = zip(*batch, strict=True)
        yield from zip(names, tokenizer.encode_many(texts), strict=True)


def _shard_name(index: int) -> str:
    return f"tokens-{index:05d}.bin"
