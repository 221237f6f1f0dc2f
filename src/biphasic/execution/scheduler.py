"""Scheduler: runs jobs longest path first, retries transient failures, skips blocked jobs."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol

from biphasic.errors import ConfigError, DoneElsewhereError, LockHeldError, StoppedError
from biphasic.execution import TRIES
from biphasic.execution.executor import Executor
from biphasic.execution.job import (
    ExecutorError,
    Failure,
    Job,
    JobFailedError,
    Request,
    RequeuedError,
    WorkItem,
    dependents,
    longest_paths,
    save_job,
    with_dependents,
)

Event = tuple[str, BaseException | None]  # a job that has ended, and its error


@dataclass(frozen=True)
class RetryPolicy:
    """Retry policy of transient failures."""

    tries: int = TRIES  # total tries, including the first
    # Delay before the second try; each later delay is four times as long.
    delay_seconds: float = 5.0

    def delay(self, tries: int) -> float:
        """Return the seconds to wait after this many tries."""
        return float(self.delay_seconds * 4 ** (tries - 1))


@dataclass(frozen=True)
class WorkOutcome:
    """Outcome of a scheduler run."""

    num_executed: int  # jobs run by this process
    failures: tuple[Failure, ...]
    blocked: tuple[WorkItem, ...]  # jobs that need a failed one
    is_stopped: bool = False  # the run was cancelled


class Clock:
    """The clock of a scheduler; a simulation has its own."""

    taken_seconds = 2.0  # interval between checks of a job that another process is running
    listen_seconds = 1.0  # maximum wait for an event before reading requests

    def now(self) -> float:
        """Return the time in seconds."""
        return time.monotonic()

    def wait(self, events: SimpleQueue[Event], seconds: float) -> Event:
        """Return the next event."""
        return events.get(timeout=seconds)


class Watcher(Protocol):
    """Callbacks for job events, called from the scheduling thread."""

    def started(self, item: WorkItem) -> None:
        """Called when a job was submitted to the executor."""

    def ended(self, item: WorkItem, failure: Failure | None, *, elsewhere: bool) -> None:
        """Called when a job is done or has failed; `elsewhere` if another process ran it."""

    def delayed(self, item: WorkItem, error: BaseException) -> None:
        """Called when a job will run again later."""

    def revived(self, item: WorkItem) -> None:
        """Called when a failed job will be retried."""

    def tick(self) -> None:
        """Called about once a second."""


class Scheduler:
    """Submits jobs to an executor; the store records which are finished."""

    def __init__(
        self,
        items: Iterable[WorkItem],
        executor: Executor,
        *,
        policy: RetryPolicy,
        watcher: Watcher,
        read_requests: Callable[[], Sequence[Request]] = tuple,
        save: Callable[[Job], object] = save_job,
        clock: Clock | None = None,
    ) -> None:
        """Prepare; `read_requests` is called about once a second, and `save` before each try."""
        self._items = {item.id: item for item in items}
        self._executor, self._policy, self._watcher = executor, policy, watcher
        self._read_requests, self._save, self._clock = read_requests, save, clock or Clock()
        self._waiting = dependents({item.id: item.needs for item in self._items.values()})
        paths = longest_paths(self._items.values())
        # Longest path first; ties follow the study's order.
        self._ranks = {
            identity: (-paths[identity], number, identity)
            for number, identity in enumerate(self._items)
        }
        self._ready: list[tuple[float, int, str]] = []
        self._delayed: list[tuple[float, int, str]] = []
        self._running: dict[str, Future[None]] = {}
        self._ended: SimpleQueue[Event] = SimpleQueue()
        self._failed: dict[str, Failure] = {}
        self._tries: dict[str, int] = {}
        self._num_executed = 0
        self._num_used = 0
        self._looked = 0.0
        for item in self._items.values():
            if item.num_slots > executor.num_slots:
                raise ConfigError(
                    f"{item.label}: needs {item.num_slots} processes (compute.processes), but "
                    f"there are {executor.num_slots} slots; increase --workers"
                )

    def run(self) -> WorkOutcome:
        """Run all jobs that can run."""
        for item in self._items.values():
            if item.needs not in self._items:
                heapq.heappush(self._ready, self._ranks[item.id])
        is_stopped = False
        while not is_stopped and (self._ready or self._delayed or self._running):
            now = self._clock.now()
            while self._delayed and self._delayed[0][0] <= now:
                heapq.heappush(self._ready, self._ranks[heapq.heappop(self._delayed)[2]])
            self._start()
            self._listen()
            is_stopped = self._heed_requests()
            self._watcher.tick()
        blocked = (each for one in self._failed for each in with_dependents(one, self._waiting))
        return WorkOutcome(
            num_executed=self._num_executed,
            failures=tuple(self._failed.values()),
            blocked=tuple(self._items[identity] for identity in dict.fromkeys(blocked)),
            is_stopped=is_stopped,
        )

    def _start(self) -> None:
        """Fill the slots; a job that needs several waits at the front until they are free."""
        while self._ready:
            item = self._items[self._ready[0][2]]
            # Asked as late as possible: another process may share the store, and have finished it.
            try:
                is_done = item.is_done()
            except OSError as error:  # as below
                heapq.heappop(self._ready)
                self._fail(item, error)
                continue
            if is_done:
                heapq.heappop(self._ready)
                self._finish(item, elsewhere=True)
                continue
            # Smaller jobs behind it do not overtake it: they would keep it waiting for ever.
            if self._num_used + item.num_slots > self._executor.num_slots:
                return
            heapq.heappop(self._ready)
            try:
                self._save(item.make())
                future = self._executor.submit(item.id)
            except OSError as error:  # e.g. a full disk: fail the job, not the study
                self._fail(item, error)
                continue
            self._running[item.id] = future
            self._num_used += item.num_slots
            self._watcher.started(item)
            future.add_done_callback(partial(self._note, item.id))

    def _note(self, identity: str, future: Future[None]) -> None:
        # Runs in an executor thread: only touch the queue.
        error = StoppedError("cancelled") if future.cancelled() else future.exception()
        self._ended.put((identity, error))

    def _listen(self) -> None:
        """Handle ended jobs; wait briefly if there are none."""
        if not self._running and not self._delayed:
            return
        seconds = self._clock.listen_seconds
        if self._delayed:
            seconds = min(max(self._delayed[0][0] - self._clock.now(), 0.01), seconds)
        with suppress(Empty):
            self._settle(*self._clock.wait(self._ended, seconds))
            while True:
                self._settle(*self._ended.get_nowait())

    def _settle(self, identity: str, error: BaseException | None) -> None:
        item = self._items[identity]
        del self._running[identity]
        self._num_used -= item.num_slots
        if error is None:
            self._num_executed += 1
            self._finish(item, elsewhere=False)
        elif isinstance(error, DoneElsewhereError):
            self._finish(item, elsewhere=True)
        # No try is counted: the other process may finish it, or end without doing so.
        elif isinstance(error, LockHeldError):
            self._delay(item, error, self._clock.taken_seconds)
        elif isinstance(error, RequeuedError):
            self._tries.pop(item.id, None)  # it made progress: tries count from here
            self._delay(item, error, 0.0)
        # Nothing can run any more, so no job has failed by itself.
        elif isinstance(error, ExecutorError):
            raise error
        # It is not queued again: this run is ending, and the next one resumes it.
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
        failure = self._failed[item.id] = Failure(
            id=item.id,
            label=item.label,
            error=str(error) or type(error).__name__,
            tries=tries,
            log=failed.log if failed else None,
            divergence=failed.divergence if failed else "",
        )
        self._watcher.ended(item, failure, elsewhere=False)

    def _finish(self, item: WorkItem, *, elsewhere: bool) -> None:
        self._watcher.ended(item, None, elsewhere=elsewhere)
        for identity in self._waiting[item.id]:
            heapq.heappush(self._ready, self._ranks[identity])

    def _delay(self, item: WorkItem, error: BaseException, seconds: float) -> None:
        due = self._clock.now() + seconds
        heapq.heappush(self._delayed, (due, self._ranks[item.id][1], item.id))
        self._watcher.delayed(item, error)

    def _heed_requests(self) -> bool:
        """Handle requests; return whether to stop."""
        now = self._clock.now()
        if now - self._looked < self._clock.listen_seconds:
            return False
        self._looked = now
        is_cancelled = False
        for request in self._read_requests():
            if request.kind == "cancel":
                is_cancelled = True
            else:
                for identity in request.jobs or tuple(self._failed):
                    if self._failed.pop(identity, None):
                        self._tries.pop(identity, None)
                        heapq.heappush(self._ready, self._ranks[identity])
                        self._watcher.revived(self._items[identity])
        return is_cancelled
