"""Tokenized documents on disk: memory-mapped, immutable, identified by their ordered content.

Their files are described in docs/formats.md. Documents contain no special tokens: these are added
when rows are laid out.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, compress, islice
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from biphasic.data.tokens.shards import ShardContent
from biphasic.errors import DataError, reading
from biphasic.files import read_json_object, write_json
from biphasic.records import Record, parse_record
from biphasic.store import CORPUS, complete_folder

REMEDY = "delete the folder and build the corpus again"
DETAILS = "corpus.json"
TEXTS = "texts"  # folder of a store for facts about corpora outside it
_LENGTHS = "lengths.npy"
_BLOCK_TOKENS = 1 << 22
_FORMAT = "biphasic.corpus/1"


class CorpusRecord(Record):
    """Content of `corpus.json`."""

    content_hash: str
    dtype: Literal["<u2", "<u4"]
    tokenizer_sha256: str
    provenance: dict[str, Any]
    num_documents: int
    num_tokens: int
    shard_documents: Annotated[list[PositiveInt], Field(min_length=1)]
    vocab_size: int


class Corpus:
    """Documents as token ids, read through memory maps.

    Attributes:
        lengths: int64 [num_documents], in tokens.
        content_hash: SHA-256 over the ordered documents' tokens and borders.
        details: Content of `corpus.json`.
    """

    def __init__(self, folder: Path) -> None:
        """Open a corpus and check every file against its manifest."""
        self.folder = folder
        CORPUS.open(folder, remedy=REMEDY).verify()
        # The manifest vouches for the bytes, but not for what another program wrote.
        raw, where = read_json_object(folder / DETAILS), str(folder / DETAILS)
        self.details = parse_record(CorpusRecord, raw, where=where, remedy=REMEDY)
        self.content_hash = self.details.content_hash
        with reading(folder, DataError, remedy=REMEDY, failure="damaged"):
            self.lengths: NDArray[np.int64] = np.load(folder / _LENGTHS)
            if self.lengths.dtype != np.int64 or self.lengths.ndim != 1:
                raise DataError(f"{folder / _LENGTHS}: not one row of int64; {REMEDY}")
            shards = list(self.shards())
            self._shards = [tokens for _, tokens, _ in shards]
            self._shard_ends = [*accumulate(self.details.shard_documents)]
            self._starts = np.concatenate(
                [np.cumsum(lengths) - lengths for _, _, lengths in shards]
            )

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def num_tokens(self) -> int:
        """Tokens of all documents, without special tokens."""
        return int(self.lengths.sum())

    def tokens(self, document: int, start: int, end: int) -> NDArray[np.integer]:
        """Return the ids `start` to `end` of a document."""
        offset = int(self._starts[document])
        shard = self._shards[bisect_right(self._shard_ends, document)]
        return shard[offset + start : offset + end]

    def names(self) -> Iterator[bytes]:
        """Yield the lines of `documents.jsonl`."""
        with (self.folder / "documents.jsonl").open("rb") as lines:
            yield from lines

    def shards(self) -> Iterator[tuple[Path, NDArray[np.integer], NDArray[np.int64]]]:
        """Yield each shard's file, its tokens, and the lengths of its documents."""
        ends = np.cumsum(self.details.shard_documents)
        for index, lengths in enumerate(np.split(self.lengths, ends[:-1])):
            file = self.folder / _shard_name(index)
            # Map each shard again, so at most one is in memory.
            yield file, np.memmap(file, dtype=self.details.dtype, mode="r"), lengths


def assemble_corpus(
    folder: Path,
    shards: Iterable[ShardContent],
    *,
    tokenizer_sha256: str,
    dtype: str,
    vocab_size: int,
    provenance: dict[str, Any],
) -> None:
    """Create a corpus folder from the non-empty documents of shards, linking files if possible."""
    # With the type, as the same bytes are other ids in two bytes than in four.
    content_hash = hashlib.sha256(dtype.encode())
    lengths_of_shards: list[NDArray[np.int64]] = []
    with complete_folder(folder) as partial:
        with (partial / "documents.jsonl").open("wb") as lines:
            for tokens, lengths, names in shards:
                has_tokens = lengths > 0
                # `islice`: a shard that reaches beyond the end of the corpus has names of later
                # documents, too.
                lines.writelines(compress(islice(names, len(lengths)), has_tokens))
                if not has_tokens.any():
                    continue
                target = partial / _shard_name(len(lengths_of_shards))
                _place(tokens, target, num_bytes=int(lengths.sum()) * int(dtype[-1]))
                lengths_of_shards.append(lengths[has_tokens])
                _hash_documents(
                    content_hash, np.memmap(target, dtype, mode="r"), lengths_of_shards[-1]
                )
        if not lengths_of_shards:
            raise DataError(f"{folder.name}: the corpus is empty; no document has any text")
        all_lengths = np.concatenate(lengths_of_shards)
        np.save(partial / _LENGTHS, all_lengths)
        details = {
            "format": _FORMAT,
            "dtype": dtype,
            "tokenizer_sha256": tokenizer_sha256,
            "provenance": provenance,
            "vocab_size": vocab_size,
            "num_documents": len(all_lengths),
            "num_tokens": int(all_lengths.sum()),
            "shard_documents": [len(part) for part in lengths_of_shards],
            "content_hash": content_hash.hexdigest(),
        }
        write_json(partial / DETAILS, details)


def token_blocks(tokens: NDArray[np.integer]) -> Iterator[tuple[int, NDArray[np.integer]]]:
    """Yield parts of a shard's tokens that fit into memory, with the position of each."""
    for start in range(0, len(tokens), _BLOCK_TOKENS):
        yield start, tokens[start : start + _BLOCK_TOKENS]


def content_hash_of(corpus: Corpus) -> str:
    """Compute a corpus's content hash from its tokens."""
    hasher = hashlib.sha256(corpus.details.dtype.encode())
    for _, tokens, lengths in corpus.shards():
        _hash_documents(hasher, tokens, lengths)
    return hasher.hexdigest()


def sources_of(provenance: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the names of sources and their counts; merged corpora have those of their parts."""
    for part in provenance.get("merged", ()):
        yield from sources_of(part["provenance"])
    yield from provenance.get("by_source", {}).items()


def plugins_of(provenance: Mapping[str, Any]) -> Iterator[str]:
    """Yield the plugins among the sources, with the hashes of their code."""
    for part in provenance.get("merged", ()):
        yield from plugins_of(part["provenance"])
    for texts in provenance.get("plugins", {}).values():
        yield from texts


def _shard_name(index: int) -> str:
    """Return the name of a shard's file."""
    return f"tokens-{index:05d}.bin"


def _hash_documents(
    hasher: hashlib._Hash, tokens: NDArray[np.integer], lengths: NDArray[np.int64]
) -> None:
    """Hash documents' tokens and borders: 8 bytes of length, the tokens, and so on."""
    end = 0
    for length in lengths.tolist():
        start, end = end, end + length
        # Borders count: the same tokens cut into other documents give other rows.
        hasher.update(length.to_bytes(8, "little"))
        hasher.update(tokens[start:end].data)


def _place(source: Path, target: Path, *, num_bytes: int) -> None:
    """Create `target` from the first bytes of `source`, without copying if possible."""
    if source.stat().st_size == num_bytes:
        try:
            # A link, as shards are as large as the corpus and are never changed.
            os.link(source, target)
        except OSError:  # another file system, or one without hard links
            shutil.copyfile(source, target)
        return
    np.memmap(source, dtype=np.uint8, mode="r")[:num_bytes].tofile(target)
