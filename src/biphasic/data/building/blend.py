"""Tokenizes all sources of a corpus to shards, in sequence or mixed by shares."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from pathlib import Path

from rich.console import Console

from biphasic.amounts import duration, size
from biphasic.data.building.config import CorpusConfig
from biphasic.data.building.gather import MOST_BYTES_PER_TOKEN, Gathered, Gathering, Reach
from biphasic.data.building.selection import Selection
from biphasic.data.text.sources import read_documents
from biphasic.data.tokens.tokenize import ShardMaker
from biphasic.errors import DataError
from biphasic.progress import progress_bar

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


Report = Callable[[BuildProgress], None]


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
        self._config, self._work, self._tokenizer_folder = config, work, tokenizer_folder
        self._is_in_task = is_in_task
        self._names = unique_names([source.short_name for source in config.sources])
        self._shares = [source.share for source in config.sources if source.share is not None]
        self._block_bytes = block_bytes
        if config.max_tokens is not None:
            # Avoids reading much more than needed of a large or remote source.
            needed = config.max_tokens * MOST_BYTES_PER_TOKEN // 2
            self._block_bytes = min(block_bytes, max(needed, _LEAST_BLOCK_BYTES))

    def gather(self, *, num_workers: int, report: Report | None = None) -> list[Gathered]:
        """Read and tokenize the sources, as far as each belongs to the corpus."""
        config = self._config
        with (
            Selection(config, self._work, self._is_in_task) as self._selection,
            ShardMaker(
                self._work / "shards", self._tokenizer_folder, num_workers=num_workers
            ) as self._maker,
        ):
            self._report, self._began = report, time.monotonic()
            self._text_bytes = self._tokens = 0
            if not self._shares:
                return self._one_after_another()
            if config.max_tokens is None:
                gathered = self._everything()
                available = [source.reach().tokens for source in gathered]
                if 0 in available:
                    name = self._names[available.index(0)]
                    raise DataError(f"{name}: has no training document to mix")
                quotas = fitting_quotas(self._shares, available)
                for source, quota in zip(gathered, quotas, strict=True):
                    source.end_within(quota)
                return gathered
            return self._mixture(config.max_tokens)

    def _one_after_another(self) -> list[Gathered]:
        tokens, documents = self._config.max_tokens, self._config.max_documents
        if tokens is None and documents is None:
            return self._everything()
        gathered: list[Gathered] = []
        for source in range(len(self._names)):
            reading = self._read(source, Reach(tokens, documents))
            reading.count_finished(wait=True)
            if reading.fits_nothing and tokens != self._config.max_tokens:
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
        for source in range(len(self._names)):
            readings.append(self._read(source, Reach()))
            for reading in readings:
                reading.count_finished()
        return [reading.finish() for reading in readings]

    def _mixture(self, total: int) -> list[Gathered]:
        gathered: list[Gathered] = []
        for source, quota in enumerate(token_quotas(self._shares, total)):
            reading = self._read(source, Reach(quota))
            gathered.append(reading.finish())
            if gathered[-1].stop is None:
                tokens = reading.reach.tokens
                raise DataError(
                    f"{self._names[source]}: has {tokens:,} tokens, but its share of max_tokens "
                    f"is {quota:,}; max_tokens {largest_total(self._shares, source, tokens)} "
                    "would fit"
                )
        return gathered

    def _read(self, source: int, reach: Reach) -> Gathering:
        name = self._names[source]
        reading = Gathering(
            name,
            read_documents(self._config.sources[source], self._config.context),
            selection=self._selection,
            maker=self._maker,
            reach=reach,
            prefix=f"{name}:" if len(self._names) > 1 else "",
            block_bytes=self._block_bytes,
            watch=self._count,
        )
        reading.read()
        return reading

    def _count(self, text_bytes: int, tokens: int) -> None:
        """Add a finished shard, and report the sums."""
        self._text_bytes += text_bytes
        self._tokens += tokens
        if self._report:
            progress = BuildProgress(
                text_bytes=self._text_bytes,
                tokens=self._tokens,
                total_tokens=self._config.max_tokens,
                num_found=self._maker.num_found,
                seconds=time.monotonic() - self._began,
            )
            self._report(progress)


def token_quotas(shares: Sequence[float], total: int) -> list[int]:
    """Divide a number of tokens by shares, rounded down."""
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
def build_bar(console: Console) -> Iterator[Report]:
    """Show the progress of a build; yield its progress callback."""
    with progress_bar(console, "building the corpus", unit="tokens") as report:
        yield lambda progress: report(
            progress.tokens, progress.total_tokens, size(progress.text_bytes)
        )
