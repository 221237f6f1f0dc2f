"""Threads beside the training loop: one prepares inputs ahead, one writes checkpoints."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class BackgroundWriter:
    """Runs one write at a time in a thread."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self._executor = executor
        self._pending: Future[None] | None = None

    def begin(self, write: Callable[[], None]) -> None:
        """Start a write; wait first for the previous one."""
        self.wait()
        self._pending = self._executor.submit(write)

    def check(self) -> None:
        """Raise what the last write raised, without waiting for it."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Wait for the last write."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()


@contextmanager
def background_writer(*, waits_after_errors: bool) -> Iterator[BackgroundWriter]:
    """Yield a writer; when the block ends, its last write has ended too."""
    # Without `waits_after_errors`, a block that fails does not wait: the other ranks, with which a
    # checkpoint is written, may be lost.
    executor = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
    writer = BackgroundWriter(executor)
    has_ended = False
    try:
        yield writer
        writer.wait()
        has_ended = True
    finally:
        executor.shutdown(wait=has_ended or waits_after_errors)


@contextmanager
def prefetched(
    produce: Callable[[ItemT], ResultT], items: Iterable[ItemT], *, ahead: int
) -> Iterator[Iterator[ResultT]]:
    """Yield `produce(item)` for each item, in order, prepared by one thread."""
    # An error is raised unchanged at its item's turn. The thread has always ended when the block is
    # left. `ahead` items are prepared after the current one; with 0, each is prepared on demand,
    # without a thread. `produce` is never called by two threads at once.
    if ahead == 0:
        yield map(produce, items)
        return
    executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="biphasic-prefetch")
    try:
        yield _in_order(executor, produce, items, ahead)
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _in_order(
    executor: ThreadPoolExecutor,
    produce: Callable[[ItemT], ResultT],
    items: Iterable[ItemT],
    ahead: int,
) -> Iterator[ResultT]:
    waiting: deque[Future[ResultT]] = deque()
    for item in items:
        waiting.append(executor.submit(produce, item))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
