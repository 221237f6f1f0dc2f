"""Runs what is left of a study: longest path first, failures tried again, the rest goes on."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Protocol

from biphasic.errors import ConfigError, LockHeldError, StoppedError
from biphasic.execution.executor import Executor, JobFailedError
from biphasic.execution.graph import WorkItem, dependents, longest_paths, with_dependents
from biphasic.execution.job_store import save_job
from biphasic.execution.requests import Requests

_TAKEN_SECONDS = 2.0
"""How often a job that another process does is looked at."""
_LISTEN_SECONDS = 1.0
"""How long the loop waits for something to happen before it looks for requests."""


@dataclass(frozen=True)
class RetryPolicy:
    """How often a job that failed by bad luck is tried again.

    Attributes:
        tries: In all; the first one included.
        delay_seconds: Before the second try; four times as long before each later one.
    """

    tries: int = 3
    delay_seconds: float = 5.0

    def delay(self, tries: int) -> float:
        """Return how long to wait after so many tries."""
        return float(self.delay_seconds * 4 ** (tries - 1))


@dataclass(frozen=True)
class Failure:
    """A job that was set aside.

    Attributes:
        id: Its identity.
        label: What people call it.
        error: Why, in a line.
        tries: How often it was tried.
        log: Where more is said; None where there is no more.
        divergence: What of a training was not finite at which step; empty where it failed
            otherwise.
    """

    id: str
    label: str
    error: str
    tries: int
    log: Path | None
    divergence: str = ""

    def __str__(self) -> str:
        """Return a line for people."""
        tried = f" (tried {self.tries} times)" if self.tries > 1 else ""
        # Some errors name the log themselves.
        log = f"; log: {self.log}" if self.log and str(self.log) not in self.error else ""
        return f"{self.label}: {self.error}{tried}{log}"


@dataclass(frozen=True)
class WorkOutcome:
    """What became of the work.

    Attributes:
        num_executed: Jobs that this process did.
        failures: Jobs that were set aside.
        blocked: Jobs that need one of those.
        is_stopped: Whether somebody asked to stop before the end.
    """

    num_executed: int
    failures: tuple[Failure, ...]
    blocked: tuple[WorkItem, ...]
    is_stopped: bool = False


class Watcher(Protocol):
    """Told what happens to jobs, from the thread that schedules them."""

    def started(self, item: WorkItem) -> None:
        """Told that a job was given to the engine."""
        ...

    def ended(self, item: WorkItem, error: BaseException | None, *, elsewhere: bool) -> None:
        """Told that a job is done, or set aside; `elsewhere` if another process did it."""
        ...

    def delayed(self, item: WorkItem, error: BaseException) -> None:
        """Told that a job comes up again later."""
        ...

    def revived(self, item: WorkItem) -> None:
        """Told that a job that was set aside is to be tried again."""
        ...

    def tick(self) -> None:
        """Told that time has passed."""
        ...


@dataclass
class _Ready:
    """Jobs that could start, the one with the longest path first."""

    paths: dict[str, float]
    heap: list[tuple[float, int, str]] = field(default_factory=list[tuple[float, int, str]])
    order: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, identity: str) -> None:
        rank = self.order.setdefault(identity, len(self.order))
        heapq.heappush(self.heap, (-self.paths[identity], rank, identity))


class Scheduler:
    """Gives jobs to an engine; what is finished is asked of the store."""

    def __init__(
        self,
        items: Iterable[WorkItem],
        engine: Executor,
        *,
        policy: RetryPolicy,
        watcher: Watcher,
        read_requests: Callable[[], Requests] = Requests,
    ) -> None:
        """Prepare.

        Args:
            items: The work.
            engine: What does it.
            policy: What becomes of failures.
            watcher: Told what happens.
            read_requests: Asked about once a second.

        Raises:
            ConfigError: A job needs more slots than there are.
        """
        self._items = {item.id: item for item in items}
        self._engine, self._policy, self._watcher = engine, policy, watcher
        self._read_requests = read_requests
        self._waiting = dependents(self._items.values())
        self._ready = _Ready(longest_paths(self._items.values()))
        for identity in self._items:  # ties go to what the study names first
            self._ready.order[identity] = len(self._ready.order)
        self._delayed: list[tuple[float, int, str]] = []
        self._running: dict[str, Future[None]] = {}
        self._ended: SimpleQueue[tuple[str, BaseException | None]] = SimpleQueue()
        self._done: set[str] = set()
        self._aside: dict[str, Failure] = {}
        self._tries: dict[str, int] = {}
        self._num_executed = 0
        self._num_used = 0
        self._looked = 0.0
        self._check_slots()

    def run(self) -> WorkOutcome:
        """Do all that can be done."""
        for item in self._items.values():
            if item.needs not in self._items:
                self._ready.add(item.id)
        is_stopped = False
        while not is_stopped and (self._ready.heap or self._delayed or self._running):
            self._wake()
            self._start()
            self._listen()
            is_stopped = self._heed_requests()
            self._watcher.tick()
        return WorkOutcome(
            num_executed=self._num_executed,
            failures=tuple(self._aside.values()),
            blocked=tuple(self._blocked()),
            is_stopped=is_stopped,
        )

    def _check_slots(self) -> None:
        for item in self._items.values():
            if item.num_slots > self._engine.num_slots:
                raise ConfigError(
                    f"{item.label}: takes {item.num_slots} processes (compute.processes), and "
                    f"there are {self._engine.num_slots} slots; run with as many (--workers)"
                )

    def _wake(self) -> None:
        """Let jobs whose time has come try again."""
        now = time.monotonic()
        while self._delayed and self._delayed[0][0] <= now:
            self._ready.add(heapq.heappop(self._delayed)[2])

    def _start(self) -> None:
        """Fill the slots; a job of several waits at the front until they are free."""
        while self._ready.heap:
            item = self._items[self._ready.heap[0][2]]
            if item.is_done():
                heapq.heappop(self._ready.heap)
                self._finish(item, elsewhere=True)
                continue
            if self._num_used + item.num_slots > self._engine.num_slots:
                return
            heapq.heappop(self._ready.heap)
            self._submit(item)

    def _submit(self, item: WorkItem) -> None:
        try:
            save_job(item.make())
            future = self._engine.submit(item.id)
        except OSError as error:  # a full disk, say: the job's bad luck, not the study's end
            self._fail(item, error)
            return
        self._running[item.id] = future
        self._num_used += item.num_slots
        self._watcher.started(item)
        future.add_done_callback(partial(self._note, item.id))

    def _note(self, identity: str, future: Future[None]) -> None:
        # From a thread of the engine: nothing but the queue is touched.
        error = StoppedError("cancelled") if future.cancelled() else future.exception()
        self._ended.put((identity, error))

    def _listen(self) -> None:
        """Take what ended; wait a moment if nothing has."""
        if not self._running and not self._delayed:
            return
        with suppress(Empty):
            self._settle(*self._ended.get(timeout=self._patience()))
            while True:
                self._settle(*self._ended.get_nowait())

    def _patience(self) -> float:
        if not self._delayed:
            return _LISTEN_SECONDS
        return min(max(self._delayed[0][0] - time.monotonic(), 0.01), _LISTEN_SECONDS)

    def _settle(self, identity: str, error: BaseException | None) -> None:
        item = self._items[identity]
        del self._running[identity]
        self._num_used -= item.num_slots
        if error is None:
            self._num_executed += 1
            self._finish(item, elsewhere=False)
        elif isinstance(error, LockHeldError):
            self._delay(item, error, _TAKEN_SECONDS)
        elif isinstance(error, StoppedError):
            self._watcher.delayed(item, error)
        else:
            self._fail(item, error)

    def _fail(self, item: WorkItem, error: BaseException) -> None:
        tries = self._tries[item.id] = self._tries.get(item.id, 0) + 1
        failed = error if isinstance(error, JobFailedError) else None
        is_final = failed is not None and failed.is_final
        if tries < self._policy.tries and not is_final:
            self._delay(item, error, self._policy.delay(tries))
            return
        self._aside[item.id] = Failure(
            id=item.id,
            label=item.label,
            error=str(error) or type(error).__name__,
            tries=tries,
            log=failed.log if failed else None,
            divergence=failed.divergence if failed else "",
        )
        self._watcher.ended(item, error, elsewhere=False)

    def _finish(self, item: WorkItem, *, elsewhere: bool) -> None:
        self._done.add(item.id)
        self._watcher.ended(item, None, elsewhere=elsewhere)
        for identity in self._waiting[item.id]:
            self._ready.add(identity)

    def _delay(self, item: WorkItem, error: BaseException, seconds: float) -> None:
        due = time.monotonic() + seconds
        heapq.heappush(self._delayed, (due, self._ready.order[item.id], item.id))
        self._watcher.delayed(item, error)

    def _heed_requests(self) -> bool:
        """Do what people ask; tell whether they want an end."""
        now = time.monotonic()
        if now - self._looked < _LISTEN_SECONDS:
            return False
        self._looked = now
        requests = self._read_requests()
        if requests.retries is not None:
            self._try_again(requests.retries)
        return requests.is_cancelled

    def _try_again(self, identities: tuple[str, ...]) -> None:
        for identity in identities or tuple(self._aside):
            if identity in self._aside:
                del self._aside[identity]
                self._tries.pop(identity, None)
                self._ready.add(identity)
                self._watcher.revived(self._items[identity])

    def _blocked(self) -> list[WorkItem]:
        found: dict[str, WorkItem] = {}
        for identity in self._aside:
            for each in with_dependents(identity, self._waiting):
                found.setdefault(each, self._items[each])
        return list(found.values())
