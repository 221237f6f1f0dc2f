"""Background preparation of items while the caller does other work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


@contextmanager
def prefetched(
    produce: Callable[[ItemT], ResultT], items: Iterable[ItemT], *, ahead: int
) -> Iterator[Iterator[ResultT]]:
    """Yield `produce(item)` for each item, in order, prepared by one thread.

    An error is raised unchanged at its item's turn. The thread has always ended when the block is
    left. `ahead` items are prepared after the current one; with 0, each is prepared on demand,
    without a thread. `produce` is never called by two threads at once.
    """
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
