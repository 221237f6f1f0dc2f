"""Work made ready in the background while the caller does something else."""

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
    """Give what `produce` makes of each item, in order, made ready by one thread.

    An error comes up where its item's turn is, as itself. However the block is left, the thread is
    gone afterwards.

    Args:
        produce: Called for one item at a time, never by two threads at once.
        items: Their order is kept.
        ahead: Items after the current one that are made ready; 0 makes each when it is asked for,
            without a thread.
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
