"""Blocks of documents, and the shards made by tokenizing them.

A shard is a complete folder, named by the hash of its inputs: `tokens.bin`, ids of all documents
end to end; `index.npy`, int64 [num_documents, num_notes + 2], the notes of each, its characters and
its tokens; and `documents.jsonl`, the id of each.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.store import complete_folder

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


class Block:
    """Documents that are tokenized together.

    Attributes:
        documents: Id and text of each.
        notes: Numbers of each, which are passed on to the shard's index.
        num_bytes: Bytes of all texts in UTF-8.
    """

    def __init__(self) -> None:
        self.documents: list[tuple[str, str]] = []
        self.notes: list[Sequence[int]] = []
        self.num_bytes = 0

    def add(self, document_id: str, text: str, notes: Sequence[int] = ()) -> None:
        """Add a document."""
        self.documents.append((document_id, text))
        self.notes.append(notes)
        self.num_bytes += len(text.encode())

    def key(self, tokenizer_sha256: str) -> str:
        """Return the name of the shard that a tokenizer makes from this block."""
        version = importlib.metadata.version("tokenizers")
        content = [SHARD_VERSION, version, tokenizer_sha256, self.documents, self.notes]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:40]


def write_shard(folder: Path, block: Block, tokenizer: TextTokenizer) -> None:
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
            for batch in text_batches(block.documents, characters=_BATCH_CHARACTERS):
                texts = [text for _, text in batch]
                for ids in encoder.encode(texts):
                    tokens.write(ids)
                    lengths.append(len(ids) // token_bytes)
                characters += map(len, texts)
                names.writelines(json.dumps(document_id) + "\n" for document_id, _ in batch)
        columns = np.array([characters, lengths], dtype=np.int64).T
        notes = np.array(block.notes, dtype=np.int64).reshape(len(columns), -1)
        np.save(partial / INDEX, np.hstack([notes, columns]))


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
