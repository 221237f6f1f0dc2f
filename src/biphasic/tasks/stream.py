"""Computes on a stream of examples in windows of bounded memory, and counts them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from biphasic.errors import DataError

Item = TypeVar("Item")
# Called with the number of examples done and the total, if known.
Report = Callable[[int, int | None], None]


@dataclass(frozen=True)
class Summary:
    """Counts and time of a computation on examples."""

    num_examples: int
    num_cut: int  # truncated examples
    num_empty: int
    max_seqlen: int  # in tokens
    seconds: float  # without loading the model

    def notes(self) -> tuple[str, ...]:
        """Return how many inputs were truncated, and how many are empty."""
        of = f"of {self.num_examples:,}"
        cut = f"truncated: {self.num_cut:,} {of}, longer than {self.max_seqlen} tokens"
        counts = ((cut, self.num_cut), (f"empty: {self.num_empty:,} {of}", self.num_empty))
        return tuple(text for text, count in counts if count)


class Windows:
    """Examples in windows; `watch` reports the progress within a window."""

    def __init__(self, name: Path | str, *, total: int | None, report: Report | None) -> None:
        self._name = name
        self._total = total
        self._report = report
        self._done = self._size = 0

    def watch(self, read: int, of: int) -> None:
        """Report that a part of the window's tokens is read."""
        if self._report is not None:
            self._report(self._done + self._size * read // of, self._total)

    def run(
        self,
        windows: Iterable[list[Item]],
        compute: Callable[[list[Item]], tuple[int, int]],
        *,
        max_seqlen: int,
    ) -> Summary:
        """Compute each window; `compute` returns the numbers of truncated and empty examples."""
        started, num_cut, num_empty = time.perf_counter(), 0, 0
        for window in windows:
            self._size = len(window)
            cut, empty = compute(window)
            num_cut, num_empty = num_cut + cut, num_empty + empty
            self._done += self._size
        if not self._done:
            raise DataError(f"{self._name}: empty; there is nothing to read")
        seconds = time.perf_counter() - started
        return Summary(self._done, num_cut, num_empty, max_seqlen, seconds)
