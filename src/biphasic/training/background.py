"""Writes checkpoints in a thread while training goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager


class BackgroundWriter:
    """Runs one write at a time in a thread."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self._executor = executor
        self._pending: Future[None] | None = None

    def begin(self, write: Callable[[], None]) -> None:
        """Start a write; wait first for the previous one.

        Raises:
            Exception: What the previous write raised.
        """
        self.wait()
        self._pending = self._executor.submit(write)

    def check(self) -> None:
        """Raise what the last write raised, without waiting for it."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Wait for the last write.

        Raises:
            Exception: What it raised.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()


@contextmanager
def background_writer(*, waits_after_errors: bool) -> Iterator[BackgroundWriter]:
    """Yield a writer; when the block ends, its last write has ended too.

    Without `waits_after_errors`, a block that fails does not wait: the other ranks, with which a
    checkpoint is written, may be lost.
    """
    executor = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
    writer = BackgroundWriter(executor)
    has_ended = False
    try:
        yield writer
        writer.wait()
        has_ended = True
    finally:
        executor.shutdown(wait=has_ended or waits_after_errors)
