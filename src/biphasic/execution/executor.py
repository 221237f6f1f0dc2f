"""Executors run jobs; the local one uses worker processes on this machine.

An executor receives only a job's identity and loads the job from the store. The store records
which jobs are finished, so an executor for a cluster only needs to implement `submit`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from biphasic.errors import BiphasicError, LockHeldError, StoppedError, StudyError
from biphasic.execution.job import LoadJob, Progress
from biphasic.execution.slots import Slot, devices_environment

Watch = Callable[[str, Progress], None]
"""Progress callback with a job's identity, called from executor threads."""
_STOP_SECONDS = 20.0
"""Time that stopping workers have to save their progress."""


class JobFailedError(StudyError):
    """A job failed.

    Attributes:
        is_final: Whether a retry is expected to fail in the same way.
        log: Path of the log, if any.
        divergence: Which value was not finite at which step; empty for other failures.
    """

    def __init__(
        self, message: str, *, is_final: bool, log: Path | None, divergence: str = ""
    ) -> None:
        # Some libraries raise errors of many lines; the log has all of them.
        super().__init__(message.partition("\n")[0])
        self.is_final = is_final
        self.log = log
        self.divergence = divergence


class Executor(Protocol):
    """Runs jobs from the store."""

    @property
    def num_slots(self) -> int:
        """Return the number of slots."""
        ...

    def submit(self, job_id: str) -> Future[None]:
        """Run a job as soon as slots are free.

        The future raises `JobFailedError` if the job fails, `LockHeldError` if another process
        is running it, and `StoppedError` if it was stopped on request.
        """
        ...


class LocalExecutor:
    """Runs jobs on one long-lived process per slot.

    A job's result does not depend on the number of slots or on earlier jobs of the worker. It may
    depend on `num_threads`, which changes the order of sums.
    """

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
        """Prepare; each worker starts with its first job.

        Args:
            store: Content store with the jobs.
            slots: Slots to compute on.
            load_job: Loads a job.
            worker: Module that calls `biphasic.execution.worker.serve` when it is run.
            num_threads: Threads per slot.
            log_folder: Folder for logs of jobs and workers.
            watch: Progress callback.
        """
        log_folder.mkdir(parents=True, exist_ok=True)
        self._store, self._watch, self._load_job = store, watch, load_job
        self._workers = {
            slot: _Worker(
                slot, store, module=worker, num_threads=num_threads, log_folder=log_folder
            )
            for slot in slots
        }
        self._free = list(slots)
        self._queue: deque[tuple[str, int, Future[None]]] = deque()
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(len(slots), thread_name_prefix="biphasic-slot")

    @property
    def num_slots(self) -> int:
        """Return the number of slots."""
        return len(self._workers)

    def submit(self, job_id: str) -> Future[None]:
        """Queue a job; it runs when enough slots are free.

        Raises:
            StudyError: There is no such job in the store, or it needs more slots than there are.
        """
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the workers; running training jobs save their progress first."""
        with self._lock:
            waiting, self._queue = self._queue, deque()
        for _, _, future in waiting:
            future.cancel()
        for worker in self._workers.values():
            worker.ask_to_stop()
        for worker in self._workers.values():
            worker.end(within_seconds=_STOP_SECONDS)
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
                job_id, slots, lambda progress: self._watch(job_id, progress)
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


class _Worker:
    """A process on a slot, started with its first job and restarted after it dies."""

    def __init__(
        self, slot: Slot, store: Path, *, module: str, num_threads: int, log_folder: Path
    ) -> None:
        self._slot, self._store, self._num_threads = slot, store, num_threads
        self._module = module
        self._logs = log_folder
        self._is_stopped = False
        self._process: subprocess.Popen[str] | None = None
        # Prevents a process from starting after the stop request.
        self._lock = threading.Lock()

    def run(self, job_id: str, slots: Sequence[Slot], watch: Callable[[Progress], None]) -> None:
        """Run a job.

        Raises:
            JobFailedError: The job failed.
            LockHeldError: Another process is running it.
            StoppedError: It was stopped on request.
        """
        process = self._ready()
        if process.stdin is None or process.stdout is None:
            raise StudyError("a worker was started without pipes")
        log = self._logs / f"{job_id}.log"
        given = {"job": job_id, "log": str(log), "environment": devices_environment(slots)}
        try:
            process.stdin.write(json.dumps(given) + "\n")
            process.stdin.flush()
        except (BrokenPipeError, ValueError):  # it has ended, or was just asked to stop
            raise self._died(process, log) from None
        for line in process.stdout:
            event: dict[str, Any] = json.loads(line)
            kind = event.pop("event")
            if kind == "progress":
                watch(Progress(**event))
            elif kind == "finished":
                return
            elif kind == "taken":
                raise LockHeldError(event["error"], event["owner"])
            elif kind == "stopped":
                raise self._stopped(process, event["error"])
            else:
                has_log = log.is_file()
                raise JobFailedError(
                    event["error"],
                    is_final=event["is_final"],
                    log=log if has_log else None,
                    divergence=event.get("divergence", ""),
                )
        raise self._died(process, log)

    def ask_to_stop(self) -> None:
        """Ask the process to save its progress and exit; it accepts no more jobs."""
        with self._lock:
            self._is_stopped = True
            if self._process is not None and self._process.stdin is not None:
                with suppress(BrokenPipeError, ValueError):
                    self._process.stdin.close()

    def end(self, *, within_seconds: float) -> None:
        """Wait for the process to exit; kill it after the timeout."""
        if self._process is None:
            return
        try:
            self._process.wait(within_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Close the pipes; no thread may be reading them."""
        for pipe in (self._process.stdin, self._process.stdout) if self._process else ():
            with suppress(BrokenPipeError):
                if pipe:
                    pipe.close()

    def _ready(self) -> subprocess.Popen[str]:
        with self._lock:
            if self._is_stopped:
                raise StoppedError("not started: the study was stopped")
            if self._process is not None and self._process.poll() is not None:
                self.close()
                self._process = None
            if self._process is None:
                self._process = self._start()
            return self._process

    def _stopped(self, process: subprocess.Popen[str], message: str) -> BiphasicError:
        """Return the error of a stopped job: our own request, or an external signal."""
        if self._is_stopped:
            return StoppedError(message)
        # The worker accepts no more jobs: wait for its exit, or the next job would go to it.
        process.kill()
        process.wait()
        return JobFailedError(f"its worker was terminated; {message}", is_final=False, log=None)

    def _died(self, process: subprocess.Popen[str], log: Path) -> BiphasicError:
        # A dying process closes its pipes first: wait, or the next job would go to it.
        process.kill()
        process.wait()
        if self._is_stopped:
            return StoppedError("stopped; it resumes from its latest checkpoint")
        logs = [path for path in (log, self._worker_log) if _is_something(path)]
        see = f"; see {logs[0]}" if logs else ""
        return JobFailedError(
            f"its worker died (killed, or out of memory?){see}",
            is_final=False,
            log=logs[0] if logs else None,
        )

    @property
    def _worker_log(self) -> Path:
        return self._logs / f"worker-{self._slot.index}.log"

    def _start(self) -> subprocess.Popen[str]:
        threads = str(self._num_threads)
        with self._worker_log.open("a", encoding="utf-8") as log:
            return subprocess.Popen(  # noqa: S603 - our own module, no shell
                [sys.executable, "-m", self._module, str(self._store), threads],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                env={
                    **os.environ,
                    **self._slot.environment(),
                    "OMP_NUM_THREADS": threads,
                    "TOKENIZERS_PARALLELISM": "false",
                },
            )


def _is_something(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0
