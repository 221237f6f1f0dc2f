"""Tokens of documents in several processes, and the shards that hold them."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import json
import os
import pickle
import re
import shutil
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from queue import LifoQueue, SimpleQueue
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from biphasic.child import PYTHON, Child, messages
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import (
    BiphasicError,
    CheckpointError,
    DataError,
    StoppedError,
    StudyError,
    system_fault_in,
)
from biphasic.files import remove_partials
from biphasic.store import SHARD, complete_folder, is_complete

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
def _piece_encoder(tokenizer: TextTokenizer, dtype: str) -> PieceEncoder:
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
_SHARD_VERSION = 1  # increase by hand whenever the same block would give a different shard
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
        content = [_SHARD_VERSION, version, tokenizer_sha256, self.notes]
        key = hashlib.sha256(json.dumps(content).encode())
        for part in chain.from_iterable(self.documents):
            encoded = part.encode()
            key.update(b"%d:" % len(encoded))
            key.update(encoded)
        return key.hexdigest()[:40]


def write_shard(folder: Path, block: Block, tokenizer: TextTokenizer) -> None:
    """Tokenise a block into a shard's folder, which appears once it is complete."""
    dtype = token_dtype(tokenizer.vocab_size)
    encoder, token_bytes = _piece_encoder(tokenizer, dtype), np.dtype(dtype).itemsize
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


ItemT = TypeVar("ItemT")


def text_batches(
    texts: Iterable[tuple[ItemT, str]], *, characters: int, most: int | None = None
) -> Iterator[list[tuple[ItemT, str]]]:
    """Yield texts, each after its id or row, in batches of so many characters or texts."""
    batch: list[tuple[ItemT, str]] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text[1])
        if size >= characters or len(batch) == most:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


_WAITING_BLOCKS = 2  # blocks waiting besides one per worker, so no worker is idle
_PIPE_BYTES = 1 << 20
# One core per worker, so as many run as requested.
_ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class ShardMaker:
    """Makes shards from blocks, in this process (one worker) or in several others.

    Memory is bounded: `make` waits while every worker is busy and some blocks are waiting.

    Attributes:
        num_found: Shards found from an interrupted build.
    """

    def __init__(self, folder: Path, tokenizer_folder: Path, *, num_workers: int) -> None:
        """Prepare; workers start with their first block. A single worker is this process."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        remove_partials(folder)
        self.num_found = 0
        self._tokenizer = TextTokenizer.load(tokenizer_folder)
        self.tokenizer_sha256 = self._tokenizer.sha256
        self._room = threading.Semaphore(num_workers + _WAITING_BLOCKS)
        self._workers = [
            _Worker(tokenizer_folder, folder / f"worker-{number}.log")
            for number in range(num_workers if num_workers > 1 else 0)
        ]
        self._idle: LifoQueue[_Worker] = LifoQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(num_workers)

    def make(self, block: Block, *, label: str) -> Future[Path]:
        """Request a shard, once there is room; return its folder, or a DataError, as a future."""
        folder = self._folder / block.key(self.tokenizer_sha256)
        is_found = _is_whole(folder)
        self.num_found += is_found
        if self._workers and not is_found:
            self._room.acquire()
            ordered = self._threads.submit(self._make_elsewhere, folder, block, label)
            ordered.add_done_callback(lambda _: self._room.release())
            return ordered
        if not is_found:
            write_shard(folder, block, self._tokenizer)
        made: Future[Path] = Future()
        made.set_result(folder)
        return made

    def __enter__(self) -> ShardMaker:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the workers immediately; finished shards stay."""
        for worker in self._workers:
            worker.kill()
        self._threads.shutdown()
        for worker in self._workers:
            worker.close()

    def _make_elsewhere(self, folder: Path, block: Block, label: str) -> Path:
        worker = self._idle.get()
        try:
            if problem := worker.write(folder, block, label):
                raise system_fault_in(problem, folder) or DataError(problem, about=label)
        finally:
            self._idle.put(worker)
        return folder


class _Worker(Child):
    """Writes shards in a separate process."""

    def __init__(self, tokenizer_folder: Path, log: Path) -> None:
        module, folder = "biphasic.data.tokens.shards", str(tokenizer_folder.resolve())
        super().__init__([*PYTHON, "-m", module, folder], log=log, environment=_ONE_THREAD)

    def write(self, folder: Path, block: Block, label: str) -> str | None:
        """Write a shard, or return why its documents or its folder prevent it."""
        if (pipes := self.started()) is None:
            raise StoppedError("not made because the build was stopped", about=label)
        stdin, stdout = pipes
        # Only an optimization: a user's quota of pipes may be used up, and not every system
        # supports it.
        with suppress(OSError, AttributeError):
            fcntl.fcntl(stdin, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        with suppress(BrokenPipeError):
            pickle.dump((folder, block), stdin)
            stdin.flush()
            for answer in messages(stdout, "error", other=self.log):
                return answer["error"]
        raise StudyError(
            f"its worker died (killed, or out of memory?); run again to resume; see {self._log}",
            about=label,
        )


def _is_whole(shard: Path) -> bool:
    """Return whether a shard is complete; delete it if it is damaged, as it can be made again."""
    if not is_complete(shard):
        return False
    try:
        SHARD.open(shard).verify()
    except CheckpointError:
        shutil.rmtree(shard)
        return False
    return True


def main() -> None:
    """Be a worker: read pickled pairs of a folder and a block, write shards, answer in JSON."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries goes to the log
    requests: SimpleQueue[tuple[Path, Block]] = SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()
    tokenizer = TextTokenizer.load(Path(sys.argv[1]))
    while True:
        answers.write(json.dumps(_serve(*requests.get(), tokenizer)) + "\n")
        answers.flush()


def _read_requests(requests: SimpleQueue[tuple[Path, Block]]) -> None:
    """Queue requests; exit immediately at the end of input, even while writing a shard."""
    try:
        while True:
            requests.put(pickle.load(sys.stdin.buffer))  # noqa: S301 - written by our parent
    except EOFError:
        pass  # the parent has ended or finished; an incomplete shard is ignored
    except Exception:  # noqa: BLE001 - the log shows why the worker ends
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(0)


def _serve(folder: Path, block: Block, tokenizer: TextTokenizer) -> dict[str, str | None]:
    try:
        write_shard(folder, block, tokenizer)
    except (BiphasicError, OSError) as error:
        return {"error": str(error)}
    except Exception as error:  # noqa: BLE001 - sent to the caller; the log has the traceback
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    return {"error": None}


if __name__ == "__main__":
    main()
