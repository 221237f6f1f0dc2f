"""Converts one source to shards: selected documents, grouped by split, until a limit is filled.

A limit ends a source between two documents. Workers run ahead of the count, so a little more is
read; the end is found by counting shards in order, and everything beyond is discarded.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from biphasic.data.building.selection import CorpusSplit, Reason, Selection
from biphasic.data.text.files import SourceDocument
from biphasic.data.tokens.shards import (
    CHARACTERS,
    INDEX,
    LENGTHS,
    BatchBuilder,
    ShardContent,
    read_shard,
)
from biphasic.data.tokens.tokenize import ShardMaker
from biphasic.errors import DataError

SPLITS: tuple[CorpusSplit, ...] = get_args(CorpusSplit)
REASONS: tuple[Reason, ...] = get_args(Reason)
# Average bytes of text per token, an upper bound; limits how much of a source is read.
MOST_BYTES_PER_TOKEN = 8
# Columns of a shard's index: the document's number in its source, counting both splits; that of its
# license; whether it holds a NUL character; and the selection's counts of remembered and skipped
# texts, as the source may end here.
POSITION, _LICENSE, _NUL, _MARK, _LEFT_OUT = range(5)

Watch = Callable[[int, int], None]  # counts a shard: bytes of its text, and tokens


class Reach:
    """Counts a source's training documents until they fill a limit of tokens or documents."""

    def __init__(self, most_tokens: int | None = None, most_documents: int | None = None) -> None:
        self.most_tokens, self._most_documents = most_tokens, most_documents
        self.tokens = self.documents = 0  # of the documents kept; empty ones are not counted
        # Position of the first document that is not kept; None while the limit is not filled.
        self.stop: int | None = None

    def extend(self, index: NDArray[np.int64]) -> None:
        """Add a shard of training documents; its index is int64 [num_documents, columns]."""
        if self.stop is not None:
            return
        lengths = index[:, LENGTHS]
        tokens = self.tokens + np.cumsum(lengths)
        documents = self.documents + np.cumsum(lengths > 0)
        is_filled = np.zeros(len(index), dtype=bool)
        if self.most_tokens is not None:
            is_filled |= tokens >= self.most_tokens
        if self._most_documents is not None:
            is_filled |= documents >= self._most_documents
        num_kept = len(index)
        if is_filled.any():
            last = int(is_filled.argmax())
            is_beyond = self.most_tokens is not None and tokens[last] > self.most_tokens
            num_kept = last if is_beyond else last + 1
            # Not the position of the next document, which may not have been read yet.
            self.stop = int(index[last, POSITION]) + (not is_beyond)
        if num_kept:
            self.tokens, self.documents = int(tokens[num_kept - 1]), int(documents[num_kept - 1])


@dataclass
class Gathered:
    """A source's shards."""

    name: str  # of the source, in messages and ids
    shards: dict[CorpusSplit, list[Path]]  # folders of each split's shards, in order
    licenses: list[str]  # licenses found, in the order of their numbers in the index
    left_out: Counter[Reason]  # skipped documents, by reason, in everything that was read
    stop: int | None = None  # position of the first document outside the corpus; None for all

    def reach(self, most_tokens: int | None = None) -> Reach:
        """Count the training documents within a limit."""
        reach = Reach(most_tokens)
        for shard in self.shards["train"]:
            reach.extend(_read_index(shard))
        return reach

    def end_within(self, most_tokens: int) -> None:
        """End the source where its training documents fill a limit."""
        reach = self.reach(most_tokens)
        if not reach.documents:
            raise DataError(_too_little(self.name, reach, remedy="give it a larger share"))
        # An exhausted source is kept to its end, including the held-out documents there.
        if reach.documents < self.reach().documents:
            self.stop = reach.stop

    def parts(self, split: CorpusSplit) -> Iterator[ShardContent]:
        """Yield the documents of a split that are in the corpus, shard by shard."""
        for shard in self.shards[split]:
            if num_kept := len(self._kept(shard)):
                yield from read_shard(shard, num_kept)

    def counts(self, split: CorpusSplit) -> dict[str, Any]:
        """Count documents, also by license, characters and tokens in a split of the corpus."""
        totals = np.zeros(2, dtype=np.int64)
        by_license = np.zeros(len(self.licenses), dtype=np.int64)
        num_documents = 0
        for shard in self.shards[split]:
            index = self._kept(shard)
            index = index[index[:, LENGTHS] > 0]
            num_documents += len(index)
            totals += index[:, [CHARACTERS, LENGTHS]].sum(axis=0)
            by_license += np.bincount(index[:, _LICENSE], minlength=len(self.licenses))
        licenses = dict(zip(self.licenses, by_license.tolist(), strict=True))
        return {
            "documents": num_documents,
            "characters": int(totals[0]),
            "tokens": int(totals[1]),
            "licenses": {name: count for name, count in licenses.items() if name and count},
        }

    def left_out_counts(self) -> dict[str, int]:
        """Count the documents skipped before the source's end."""
        counts: dict[str, int] = {reason: self.left_out[reason] for reason in REASONS}
        if self.stop is not None:
            row = self.last_row()[_LEFT_OUT : _LEFT_OUT + len(REASONS)].tolist()
            counts = dict(zip(REASONS, row, strict=True))
        # Some tokenizers have no token for some characters, and so for a whole document.
        indices = (self._kept(shard) for split in SPLITS for shard in self.shards[split])
        counts["empty"] += sum(int(np.sum(index[:, LENGTHS] == 0)) for index in indices)
        return counts

    def num_with_nul(self) -> int:
        """Count the documents of the corpus with a NUL character, which is kept as text."""
        kept = (self._kept(shard) for split in SPLITS for shard in self.shards[split])
        return sum(int(index[index[:, LENGTHS] > 0, _NUL].sum()) for index in kept)

    def last_row(self) -> NDArray[np.int64]:
        """Return the index's row of the last document."""
        shards = [shard for split in SPLITS for shard in self.shards[split]]
        rows = [kept[-1] for shard in shards if len(kept := self._kept(shard))]
        return max(rows, key=lambda row: row[POSITION])

    def _kept(self, shard: Path) -> NDArray[np.int64]:
        index = _read_index(shard)
        if self.stop is None:
            return index
        return index[: np.searchsorted(index[:, POSITION], self.stop)]


class Gathering:
    """Reads one source into shards; `read` may return before they are made, `finish` waits."""

    def __init__(
        self,
        name: str,
        documents: Iterable[SourceDocument],
        *,
        selection: Selection,
        maker: ShardMaker,
        reach: Reach,
        prefix: str,
        block_bytes: int,
        watch: Watch,
    ) -> None:
        self._name, self._prefix, self._documents = name, prefix, documents
        self._selection, self._maker, self._watch = selection, maker, watch
        self._builders = {split: BatchBuilder(block_bytes) for split in SPLITS}
        self._licenses: dict[str, int] = {}
        self._shards: dict[CorpusSplit, list[Path]] = {split: [] for split in SPLITS}
        self._orders: deque[tuple[CorpusSplit, int, Future[Path]]] = deque()
        self._bytes_read = 0  # of text in all shards, also unfinished ones
        self.reach = reach  # by the shards counted so far
        self._left_out_before = Counter(selection.left_out)

    def read(self) -> None:
        """Read the source to its end, or until its limit is filled."""
        selected = self._selection.select(self._documents)
        for position, (document, split) in enumerate(selected):
            builder = self._builders[split]
            notes = self._notes(position, document)
            builder.add(self._prefix + document.id, document.text, notes)
            if builder.is_full:
                self._order(split)
                self.count_finished(wait=self._fills_limit)
                if self.reach.stop is not None:
                    break
        if self.reach.stop is None:
            self._order("train")
        self._order("heldout")
        self._left_out = self._selection.left_out - self._left_out_before

    def finish(self) -> Gathered:
        """Wait for the shards, and find where the source ends."""
        self.count_finished(wait=True)
        if self.fits_nothing:
            remedy = "raise max_tokens (or its share, if there are shares)"
            raise DataError(_too_little(self._name, self.reach, remedy=remedy))
        gathered = Gathered(
            self._name, self._shards, list(self._licenses), self._left_out, self.reach.stop
        )
        if self.reach.stop is not None:
            self._selection.forget(int(gathered.last_row()[_MARK]))
        return gathered

    @property
    def fits_nothing(self) -> bool:
        """Whether the first training document exceeds the limit, by the shards counted."""
        return self.reach.stop is not None and not self.reach.documents

    @property
    def _fills_limit(self) -> bool:
        """Whether what was read probably fills the limit, so that no more should be read ahead."""
        most = self.reach.most_tokens
        return most is not None and self._bytes_read >= most * MOST_BYTES_PER_TOKEN

    def count_finished(self, *, wait: bool = False) -> None:
        """Count finished shards in order; with `wait`, wait for all of them."""
        while self._orders and (wait or self._orders[0][2].done()):
            split, text_bytes, future = self._orders.popleft()
            shard = future.result()
            index = _read_index(shard)
            self._shards[split].append(shard)
            self._watch(text_bytes, int(index[:, LENGTHS].sum()))
            if split == "train":
                self.reach.extend(index)

    def _notes(self, position: int, document: SourceDocument) -> tuple[int, ...]:
        license_number = self._licenses.setdefault(document.license, len(self._licenses))
        left_out = self._selection.left_out - self._left_out_before
        mark = self._selection.mark()
        has_nul = "\0" in document.text
        counts = (left_out[reason] for reason in REASONS)
        return (position, license_number, has_nul, mark, *counts)

    def _order(self, split: CorpusSplit) -> None:
        if block := self._builders[split].take():
            number = len(self._shards[split]) + sum(order[0] == split for order in self._orders)
            label = f"{self._name}, shard {number} of {split}"
            future = self._maker.make(block, label=label)
            text_bytes = int(block.sizes[:, 1].sum())
            self._bytes_read += text_bytes
            self._orders.append((split, text_bytes, future))


def _too_little(name: str, reach: Reach, *, remedy: str) -> str:
    return (
        f"{name}: its first document alone has more than the {reach.most_tokens:,} tokens that it "
        f"may give; {remedy}"
    )


def _read_index(shard: Path) -> NDArray[np.int64]:
    return np.load(shard / INDEX, mmap_mode="r")
