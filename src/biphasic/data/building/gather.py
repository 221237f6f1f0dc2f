"""Converts one source to shards: selected documents, grouped by split, until a limit is filled.

A limit ends a source between two documents. Workers run ahead of the count, so a little more is
read; the end is found by counting shards in order, and everything beyond is discarded.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from biphasic.amounts import duration, size
from biphasic.data.building.config import CorpusConfig, ShareConfig
from biphasic.data.building.selection import CorpusSplit, Reason, Selection
from biphasic.data.text.source import SourceDocument
from biphasic.data.text.sources import read_documents
from biphasic.data.tokens.shards import (
    CHARACTERS,
    INDEX,
    LENGTHS,
    Block,
    ShardContent,
    ShardMaker,
    read_shard,
)
from biphasic.errors import DataError, naming
from biphasic.progress import progress_bar

SPLITS: tuple[CorpusSplit, ...] = get_args(CorpusSplit)
REASONS: tuple[Reason, ...] = get_args(Reason)
# Average bytes of text per token, an upper bound; limits how much of a source is read.
MOST_BYTES_PER_TOKEN = 8
# Columns of a shard's index: the document's number in its source, counting both splits; that of its
# license; whether it holds a NUL character; and the selection's counts of remembered and skipped
# texts, as the source may end here.
POSITION, _LICENSE, _NUL, _MARK, _LEFT_OUT = range(5)


class Reach:
    """Counts a source's training documents until they fill a limit of tokens or documents."""

    def __init__(self, most_tokens: int | None = None, most_documents: int | None = None) -> None:
        self.most_tokens, self._most_documents = most_tokens, most_documents
        self.tokens = self.documents = 0  # of the documents kept; empty ones are not counted
        # Position of the first document that is not kept; None while the limit is not filled.
        self.stop: int | None = None
        self.ended_by: int | None = None  # tokens of that document, if it exceeds the limit

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
            # A document that exceeds the limit ends the source, even if a shorter one would still
            # fit.
            self.stop = int(index[last, POSITION]) + (not is_beyond)
            self.ended_by = int(lengths[last]) if is_beyond else None
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
    share: float | None = None  # of the tokens, if it follows from the sizes of sources

    def reach(self, most_tokens: int | None = None) -> Reach:
        """Count the training documents within a limit."""
        reach = Reach(most_tokens)
        for shard in self.shards["train"]:
            reach.extend(_read_index(shard))
        return reach

    def end_within(self, most_tokens: int) -> Reach:
        """End the source where its training documents fill a limit; return how far it reaches."""
        reach = self.reach(most_tokens)
        if not reach.documents:
            raise DataError(_too_little(self.name, reach, remedy="give it a larger share"))
        # An exhausted source is kept to its end, including the held-out documents there.
        if reach.documents < self.reach().documents:
            self.stop = reach.stop
        return reach

    def parts(self, split: CorpusSplit) -> Iterator[ShardContent]:
        """Yield the documents of a split that are in the corpus, shard by shard."""
        for shard in self.shards[split]:
            # Shards may reach beyond the end, as they are made before it is known.
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
            **({} if self.share is None else {"share": self.share}),
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
        rows = (self._kept(shard) for split in SPLITS for shard in self.shards[split])
        return sum(int(index[index[:, LENGTHS] > 0, _NUL].sum()) for index in rows)

    def last_row(self) -> NDArray[np.int64]:
        """Return the index's row of the last document."""
        shards = [shard for split in SPLITS for shard in self.shards[split]]
        rows = [index[-1] for shard in shards if len(index := self._kept(shard))]
        return max(rows, key=lambda row: row[POSITION])

    def _kept(self, shard: Path) -> NDArray[np.int64]:
        index = _read_index(shard)
        if self.stop is None:
            return index
        return index[: np.searchsorted(index[:, POSITION], self.stop)]


class Gathering:
    """Reads one source into shards; `read` may return before they are made, `finish` waits."""

    def __init__(self, blend: Blend, source: int, reach: Reach) -> None:
        self._blend, self._selection, self._name = blend, blend.selection, blend.names[source]
        self._source = blend.config.sources[source]
        self._blocks = {split: Block() for split in SPLITS}
        self._licenses: dict[str, int] = {}
        self._shards: dict[CorpusSplit, list[Path]] = {split: [] for split in SPLITS}
        self._orders: deque[tuple[CorpusSplit, int, Future[Path]]] = deque()
        self._bytes_read = 0  # of text in all shards, also unfinished ones
        self.reach = reach  # by the shards counted so far
        self._left_out_before = Counter(self._selection.left_out)

    def read(self) -> None:
        """Read the source to its end, or until its limit is filled."""
        # Documents of two sources may have one id.
        prefix = f"{self._name}:" if len(self._blend.names) > 1 else ""
        documents = read_documents(self._source, self._blend.config.context)
        selected = self._selection.select(documents)
        for position, (document, split) in enumerate(selected):
            block = self._blocks[split]
            notes = self._notes(position, document)
            block.add(prefix + document.id, document.text, notes)
            if block.num_bytes >= self._blend.block_bytes:
                self._order(split)
                self.count_finished(wait=self._fills_limit)
                if self.reach.stop is not None:
                    break
        # A filled limit needs no more training documents; held-out ones lie before the end, too.
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
            # Texts read beyond the end are in no corpus, and must not make later ones duplicates.
            self._selection.forget(int(gathered.last_row()[_MARK]))
        return gathered

    @property
    def fits_nothing(self) -> bool:
        """True if the first training document exceeds the limit, by the shards counted."""
        return self.reach.stop is not None and not self.reach.documents

    @property
    def _fills_limit(self) -> bool:
        """True if the limit is probably filled, so that no more should be read ahead."""
        most = self.reach.most_tokens
        return most is not None and self._bytes_read >= most * MOST_BYTES_PER_TOKEN

    def count_finished(self, *, wait: bool = False) -> None:
        """Count finished shards in order; with `wait`, wait for all of them."""
        while self._orders and (wait or self._orders[0][2].done()):
            split, text_bytes, future = self._orders.popleft()
            shard = future.result()
            index = _read_index(shard)
            self._shards[split].append(shard)
            self._blend.count(text_bytes, int(index[:, LENGTHS].sum()))
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
        block, self._blocks[split] = self._blocks[split], Block()
        if block.documents:
            number = len(self._shards[split]) + sum(order[0] == split for order in self._orders)
            label = f"{self._name}, shard {number} of {split}"
            future = self._blend.maker.make(block, label=label)
            self._bytes_read += block.num_bytes
            self._orders.append((split, block.num_bytes, future))


def _too_little(name: str, reach: Reach, *, remedy: str) -> str:
    return (
        f"{name}: its first document alone is longer than its limit of {reach.most_tokens:,} "
        f"tokens; {remedy}"
    )


def _read_index(shard: Path) -> NDArray[np.int64]:
    return np.load(shard / INDEX, mmap_mode="r")


_LEAST_BLOCK_BYTES = 1 << 16


@dataclass(frozen=True)
class BuildProgress:
    """Progress of tokenization, both splits together."""

    text_bytes: int  # of the text tokenized, in UTF-8
    tokens: int
    total_tokens: int | None
    num_found: int  # shards found from an interrupted build
    seconds: float  # since tokenization started

    def rates(self) -> str:
        """Format the amount of text tokenized, the time and the rates."""
        if self.num_found:  # These took no time, so there is no rate.
            return f"{self.num_found} shards reused from an interrupted build"
        seconds = max(self.seconds, 1e-9)
        return (
            f"{size(self.text_bytes)} tokenised in {duration(seconds)}: "
            f"{size(self.text_bytes / seconds)}/s, "
            f"{self.tokens / seconds:,.0f} tokens/s"
        )


BuildReport = Callable[[BuildProgress], None]


class Blend:
    """Tokenizes a corpus's sources."""

    def __init__(
        self,
        config: CorpusConfig,
        work: Path,
        tokenizer_folder: Path,
        *,
        block_bytes: int,
        is_in_task: Callable[[str], bool],
    ) -> None:
        self.config, self._work, self._tokenizer_folder = config, work, tokenizer_folder
        self._is_in_task = is_in_task
        self.names = unique_names([source.short_name for source in config.sources])
        self.reaches: dict[str, Reach] = {}  # of the sources that were read
        self._shares = [source.share for source in config.sources if source.share is not None]
        self.block_bytes = block_bytes
        if config.max_tokens is not None and config.share is None:
            # Avoids reading much more than needed of a large or remote source.
            needed = config.max_tokens * MOST_BYTES_PER_TOKEN // 2
            self.block_bytes = min(block_bytes, max(needed, _LEAST_BLOCK_BYTES))

    def gather(self, *, num_workers: int, report: BuildReport | None = None) -> list[Gathered]:
        """Read and tokenize the sources, as far as each belongs to the corpus."""
        config = self.config
        with (
            naming(self._work),
            Selection(config, self._work, self._is_in_task) as self.selection,
            ShardMaker(
                self._work / "shards", self._tokenizer_folder, num_workers=num_workers
            ) as self.maker,
        ):
            self._report, self._began = report, time.monotonic()
            self._text_bytes = self._tokens = 0
            if not config.is_mixture:
                return self._one_after_another()
            if config.share is None and config.max_tokens is not None:
                return self._mixture(config.max_tokens)
            return self._of_sizes(config.share, config.max_tokens)

    def _one_after_another(self) -> list[Gathered]:
        tokens, documents = self.config.max_tokens, self.config.max_documents
        if tokens is None and documents is None:
            return self._everything()
        gathered: list[Gathered] = []
        for source in range(len(self.names)):
            reading = self._read(source, Reach(tokens, documents))
            reading.count_finished(wait=True)
            if reading.fits_nothing and tokens != self.config.max_tokens:
                break  # Earlier sources have filled the limit, except for a remainder.
            gathered.append(reading.finish())
            if gathered[-1].stop is not None:
                break
            tokens = None if tokens is None else tokens - reading.reach.tokens
            documents = None if documents is None else documents - reading.reach.documents
        return gathered

    def _everything(self) -> list[Gathered]:
        # Without a limit, read the next source while the last shards are made.
        readings: list[Gathering] = []
        for source in range(len(self.names)):
            readings.append(self._read(source, Reach()))
            for reading in readings:
                reading.count_finished()
        return [reading.finish() for reading in readings]

    def _of_sizes(self, share: ShareConfig | None, total: int | None) -> list[Gathered]:
        """Read all sources whole; then end each at its share, which may follow from the sizes."""
        gathered = self._everything()
        available = [source.reach().tokens for source in gathered]
        if 0 in available:
            raise DataError(f"{self.names[available.index(0)]}: has no training document to mix")
        if share is not None:
            # Conneau and Lample 2019, arXiv:1901.07291, section 3.1; mmBERT lowers the temperature
            # from phase to phase (Marone et al. 2025, arXiv:2509.06888).
            self._shares = [tokens**share.temperature for tokens in available]
            for source, own in zip(gathered, self._shares, strict=True):
                source.share = round(own / sum(self._shares), 6)
        if total is None:
            quotas = fitting_quotas(self._shares, available)
        else:
            quotas = token_quotas(self._shares, total)
        short = [number for number, quota in enumerate(quotas) if quota > available[number]]
        if short:  # what fits the shortest of them fits all
            totals = {n: largest_total(self._shares, n, available[n]) for n in short}
            shortest = min(totals, key=totals.__getitem__)
            raise self._too_small(shortest, available[shortest], quotas[shortest])
        for number, source in enumerate(gathered):
            self.reaches[source.name] = source.end_within(quotas[number])
        return gathered

    def _too_small(self, source: int, tokens: int, quota: int, *, unread: str = "") -> DataError:
        return DataError(
            f"{self.names[source]}: has {tokens:,} tokens, but its share of max_tokens is "
            f"{quota:,}; max_tokens {largest_total(self._shares, source, tokens)} would fit{unread}"
        )

    def _mixture(self, total: int) -> list[Gathered]:
        gathered: list[Gathered] = []
        for source, quota in enumerate(token_quotas(self._shares, total)):
            reading = self._read(source, Reach(quota))
            gathered.append(reading.finish())
            if gathered[-1].stop is None:
                is_last = source == len(self.names) - 1
                unread = "" if is_last else ", if later sources, not read yet, have enough"
                raise self._too_small(source, reading.reach.tokens, quota, unread=unread)
        return gathered

    def _read(self, source: int, reach: Reach) -> Gathering:
        self.reaches[self.names[source]] = reach
        reading = Gathering(self, source, reach)
        reading.read()
        return reading

    def count(self, text_bytes: int, tokens: int) -> None:
        """Add a finished shard, and report the sums."""
        self._text_bytes += text_bytes
        self._tokens += tokens
        if self._report:
            progress = BuildProgress(
                text_bytes=self._text_bytes,
                tokens=self._tokens,
                total_tokens=self.config.max_tokens,
                num_found=self.maker.num_found,
                seconds=time.monotonic() - self._began,
            )
            self._report(progress)


def token_quotas(shares: Sequence[float], total: int) -> list[int]:
    """Divide a number of tokens by shares, rounded down."""
    # Exact fractions: a rounding error could move a quota, and so the corpus, by a token.
    exact = [Fraction(share) for share in shares]
    return [int(share * total / sum(exact)) for share in exact]


def fitting_quotas(shares: Sequence[float], available: Sequence[int]) -> list[int]:
    """Return the largest quotas in the ratio of the shares that the sources can fill."""
    exact = [Fraction(share) for share in shares]
    unit = min(tokens / share for tokens, share in zip(available, exact, strict=True))
    return [int(share * unit) for share in exact]


def largest_total(shares: Sequence[float], source: int, tokens: int) -> int:
    """Return the largest total for which a source can fill its share."""
    exact = [Fraction(share) for share in shares]
    return int(tokens * sum(exact) / exact[source])


def unique_names(names: Sequence[str]) -> list[str]:
    """Number equal names (`a#1`, `a#2`), skipping names that already exist."""
    unique: list[str] = []
    for name in names:
        numbered = (f"{name}#{number}" for number in count(1))
        free = (other for other in numbered if other not in names and other not in unique)
        unique.append(name if names.count(name) == 1 else next(free))
    return unique


@contextmanager
def build_bar(console: Console) -> Iterator[BuildReport]:
    """Show the progress of a build; yield its progress callback."""
    with progress_bar(console, "building the corpus", unit="tokens") as report:
        yield lambda progress: report(
            progress.tokens, progress.total_tokens, size(progress.text_bytes)
        )
