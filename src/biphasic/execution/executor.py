"""Executors run jobs, which they get by identity, from the store; the local one on this machine."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from biphasic.errors import StudyError
from biphasic.execution.job import LoadJob, Progress
from biphasic.execution.slots import Slot, devices_environment
from biphasic.execution.worker import STOP_SECONDS, WorkerProcess

# Progress callback with a job's identity, called from executor threads.
Watch = Callable[[str, Progress], None]


class Executor(Protocol):
    """Runs jobs from the store."""

    @property
    def num_slots(self) -> int:
        """Return the number of slots."""
        ...

    def submit(self, job_id: str) -> Future[None]:
        """Run a job as soon as slots are free."""
        # The future raises JobFailedError; LockHeldError or DoneElsewhereError if another process
        # runs it or has finished it; StoppedError if it was stopped on request.
        ...


class LocalExecutor:
    """Runs jobs on one long-lived process per slot."""

    # Results depend neither on slots nor on a worker's earlier jobs, but on threads: order of sums.

    def __init__(
        self,
        store: Path,
        slots: Sequence[Slot],
        *,
        load_job: LoadJob,
        worker: str,
        num_threads: int,
        log_folder: Path,
        watch: Watch,
    ) -> None:
        """Prepare; each slot's worker runs the module `worker` and starts with its first job."""
        log_folder.mkdir(parents=True, exist_ok=True)
        self._store, self._watch, self._load_job = store, watch, load_job
        self._workers = {
            slot: WorkerProcess(
                store,
                module=worker,
                num_threads=num_threads,
                log_folder=log_folder,
                name=f"worker-{slot.index}",
                environment=devices_environment([slot]),
            )
            for slot in slots
        }
        self.num_slots = len(slots)
        self._free = list(slots)
        self._queue: deque[tuple[str, int, Future[None]]] = deque()
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(len(slots), thread_name_prefix="biphasic-slot")

    def submit(self, job_id: str) -> Future[None]:
        """Queue a job; it runs when enough slots are free."""
        needed = self._load_job(self._store, job_id).num_slots
        if needed > self.num_slots:
            raise StudyError(f"job {job_id}: needs {needed} slots; there are {self.num_slots}")
        future: Future[None] = Future()
        with self._lock:
            self._queue.append((job_id, needed, future))
        self._dispatch()
        return future

    def __enter__(self) -> LocalExecutor:
        return self

    def __exit__(self, *_exception: object) -> None:
        """Stop the workers; running training jobs save their progress first."""
        with self._lock:
            waiting, self._queue = self._queue, deque()
        for _, _, future in waiting:
            future.cancel()
        for worker in self._workers.values():
            worker.ask_to_stop()
        for worker in self._workers.values():
            worker.end(STOP_SECONDS)
        self._threads.shutdown(wait=True)
        for worker in self._workers.values():
            worker.close()

    def _dispatch(self) -> None:
        """Assign free slots to jobs, strictly in queue order."""
        with self._lock:
            while self._queue and self._queue[0][1] <= len(self._free):
                job_id, needed, future = self._queue.popleft()
                slots, self._free = self._free[:needed], self._free[needed:]
                self._threads.submit(self._do, job_id, slots, future)

    def _do(self, job_id: str, slots: list[Slot], future: Future[None]) -> None:
        error: BaseException | None = None
        try:
            self._workers[slots[0]].run(
                job_id,
                lambda progress: self._watch(job_id, progress),
                environment=devices_environment(slots),
            )
        except Exception as raised:  # noqa: BLE001 - passed to the future
            error = raised
        # Free the slots before setting the result: callbacks may submit another job.
        with self._lock:
            self._free = sorted([*self._free, *slots], key=lambda slot: slot.index)
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
        self._dispatch()
