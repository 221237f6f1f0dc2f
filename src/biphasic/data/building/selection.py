"""Selects documents of a stream, and assigns them to the training or held-out split."""

from __future__ import annotations

import hashlib
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from biphasic.data.building.config import CorpusConfig
from biphasic.data.text.near_duplicates import comparable
from biphasic.data.text.source import SourceDocument

CorpusSplit = Literal["train", "heldout"]
# Reasons are columns of the shards' index, so a new one stands at the end.
Reason = Literal["empty", "too_short", "too_long", "duplicate", "in_evaluation_task"]

_CACHE_KIB = 64 * 1024


@dataclass(frozen=True)
class TaskTexts:
    """The evaluation tasks of a corpus's `against`, which higher layers read."""

    origin: tuple[tuple[str, str], ...]  # name of each task, and hash of all that determines it
    load: Callable[[], Callable[[str], bool]]  # returns whether a document holds a text of a task


NO_TASKS = TaskTexts((), lambda: lambda _: False)


class Selection:
    """Selects documents of all sources, and finds duplicates across them; a context manager."""

    def __init__(
        self,
        config: CorpusConfig,
        folder: Path | None = None,
        is_in_task: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Start without any document; `folder` is for the index of seen texts (40 bytes each)."""
        self._config, self._is_in_task = config, is_in_task
        self._seen = SeenDigests(folder) if config.deduplicate else None
        self.left_out: Counter[Reason] = Counter()

    def __enter__(self) -> Selection:
        return self

    def __exit__(self, *_: object) -> None:
        if self._seen is not None:
            self._seen.close()

    def select(
        self, documents: Iterable[SourceDocument]
    ) -> Iterator[tuple[SourceDocument, CorpusSplit]]:
        """Yield the selected documents with their splits, and count the others."""
        for document in documents:
            text_digest = digest_of(document.text)
            if reason := self._reason_against(document.text):
                self.left_out[reason] += 1
            else:
                fraction = self._config.heldout_fraction
                # By hash: with one fraction, a text is held out in every corpus or in none.
                yield document, document.split or split_of(text_digest, fraction)

    def mark(self) -> int:
        """Return the number of texts in the index, for `forget`."""
        return len(self._seen) if self._seen is not None else 0

    def forget(self, mark: int) -> None:
        """Remove the texts added since `mark`, so they may be selected again."""
        if self._seen is not None:
            self._seen.forget(mark)

    def _reason_against(self, text: str) -> Reason | None:
        if not text or text.isspace():
            return "empty"
        if len(text) < self._config.min_characters:
            return "too_short"
        longest = self._config.max_characters
        if longest is not None and len(text) > longest:
            return "too_long"
        if self._seen is not None and not self._seen.add(digest_of(comparable(text))):
            return "duplicate"
        if self._is_in_task(text):
            return "in_evaluation_task"
        return None


def digest_of(content: str | memoryview) -> bytes:
    """Return a 16-byte digest: BLAKE2b of bytes, or of the UTF-8 of a text."""
    encoded = content.encode("utf-8") if isinstance(content, str) else content
    # 128 bits: with 1e9 documents, a collision has a chance of 1e-21.
    return hashlib.blake2b(encoded, digest_size=16).digest()


def split_of(text_digest: bytes, heldout_fraction: float) -> CorpusSplit:
    """Return a text's split by its digest alone."""
    place = int.from_bytes(text_digest[:8], "big") / 2**64
    return "heldout" if place < heldout_fraction else "train"


class SeenDigests:
    """A set of digests that may exceed memory: a table in a temporary file."""

    def __init__(self, folder: Path | None = None) -> None:
        # `files.remove_partials` expects this name, and deletes the files of killed processes.
        self._folder = tempfile.TemporaryDirectory(prefix=".partial-seen-", dir=folder)
        path = Path(self._folder.name) / "seen.sqlite"
        self._connection = sqlite3.connect(path, isolation_level=None)
        # The table is worth nothing after a crash, so nothing is written for safety.
        for setting in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{_CACHE_KIB}"):
            self._connection.execute(f"PRAGMA {setting}")
        self._connection.execute(
            "CREATE TABLE seen (digest BLOB PRIMARY KEY, number INTEGER) WITHOUT ROWID"
        )
        self._count = 0
        # One transaction that never ends: its pages leave memory as the cache fills.
        self._connection.execute("BEGIN")

    def close(self) -> None:
        """Delete the file."""
        self._connection.close()
        self._folder.cleanup()

    def __len__(self) -> int:
        return self._count

    def add(self, digest: bytes) -> bool:
        """Add a digest, and return whether it is new."""
        row = (digest, self._count)
        added = self._connection.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", row)
        self._count += added.rowcount
        return added.rowcount == 1

    def forget(self, count: int) -> None:
        """Remove all except the first `count` digests."""
        self._connection.execute("DELETE FROM seen WHERE number >= ?", (count,))
        self._count = min(self._count, count)
