"""Engines: what does jobs. The local one runs them on worker processes of this machine.

An engine is given a job's identity and nothing else; it finds the job in the store, and the store,
not the engine, knows what is finished. So another engine, on a cluster, needs `submit` alone.
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
"""Told the identity of a job and how far it is, from threads of the engine."""
_STOP_SECONDS = 20.0
"""How long workers that are asked to stop may take to save what they have."""


class JobFailedError(StudyError):
    """A job failed.

    Attributes:
        is_final: Whether it would fail in the same way again, as far as can be told.
        log: Where more of it is said; None where there is no more.
        divergence: What of a training was not finite at which step; empty where it failed
            otherwise.
    """

    def __init__(
        self, message: str, *, is_final: bool, log: Path | None, divergence: str = ""
    ) -> None:
        # Of many lines, as some libraries write them, the first; the log has all.
        super().__init__(message.partition("\n")[0])
        self.is_final = is_final
        self.log = log
        self.divergence = divergence


class Executor(Protocol):
    """Does jobs that lie in the store."""

    @property
    def num_slots(self) -> int:
        """Return how many jobs of one slot it does at once."""
        ...

    def submit(self, job_id: str) -> Future[None]:
        """Do a job as soon as there is room.

        The future raises `JobFailedError` if the job fails, `LockHeldError` while another process
        does it, and `StoppedError` if it was stopped on request.
        """
        ...


class LocalExecutor:
    """Runs jobs on one long-lived process for each slot.

    A job's result does not depend on how many slots there are, nor on what a worker did before;
    it may depend on `num_threads`, because sums are then taken in another order.
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
        """Prepare; workers start when they are needed first.

        Args:
            store: Content store, where jobs lie.
            slots: What there is to compute on.
            load_job: Reads a job.
            worker: Module that calls `biphasic.execution.worker.serve` when it is run.
            num_threads: Threads per slot.
            log_folder: Where jobs and workers leave their logs.
            watch: Told about progress.
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
        """Return how many jobs of one slot run at once."""
        return len(self._workers)

    def submit(self, job_id: str) -> Future[None]:
        """Queue a job; jobs of several slots wait until so many are free.

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
        """End the workers; one that trains saves what it has before, within some seconds."""
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
        """Give the first jobs in the queue what is free; none overtakes another."""
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
        except Exception as raised:  # noqa: BLE001 - whoever waits for the future is told
            error = raised
        # Free before anyone hears of it, or who hears would find the engine full.
        with self._lock:
            self._free = sorted([*self._free, *slots], key=lambda slot: slot.index)
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
        self._dispatch()


class _Worker:
    """A process on a slot, started when it is needed and again when it has died."""

    def __init__(
        self, slot: Slot, store: Path, *, module: str, num_threads: int, log_folder: Path
    ) -> None:
        self._slot, self._store, self._num_threads = slot, store, num_threads
        self._module = module
        self._logs = log_folder
        self._is_stopped = False
        self._process: subprocess.Popen[str] | None = None
        # Or a process could start that nobody asks to stop any more.
        self._lock = threading.Lock()

    def run(self, job_id: str, slots: Sequence[Slot], watch: Callable[[Progress], None]) -> None:
        """Do a job.

        Raises:
            JobFailedError: It failed; the message says why.
            LockHeldError: Another process does it.
            StoppedError: It was asked to stop.
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
        """Ask the process to save what it has and to end; it takes no further job."""
        with self._lock:
            self._is_stopped = True
            if self._process is not None and self._process.stdin is not None:
                with suppress(BrokenPipeError, ValueError):
                    self._process.stdin.close()

    def end(self, *, within_seconds: float) -> None:
        """See the process end, or end it."""
        if self._process is None:
            return
        try:
            self._process.wait(within_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Close the pipes; nobody may be reading them."""
        for pipe in (self._process.stdin, self._process.stdout) if self._process else ():
            with suppress(BrokenPipeError):
                if pipe:
                    pipe.close()

    def _ready(self) -> subprocess.Popen[str]:
        with self._lock:
            if self._is_stopped:
                raise StoppedError("not tried: the study was stopped")
            if self._process is not None and self._process.poll() is not None:
                self.close()
                self._process = None
            if self._process is None:
                self._process = self._start()
            return self._process

    def _stopped(self, process: subprocess.Popen[str], said: str) -> BiphasicError:
        """Return what a stopped job means: our own pin, or that somebody ended the worker."""
        if self._is_stopped:
            return StoppedError(said)
        # All is saved, and it takes no further job: without waiting, the next would go to it.
        process.kill()
        process.wait()
        return JobFailedError(f"its worker was told to end; {said}", is_final=False, log=None)

    def _died(self, process: subprocess.Popen[str], log: Path) -> BiphasicError:
        # A dying process closes its pipes first: without waiting, the next job would go to it.
        process.kill()
        process.wait()
        if self._is_stopped:
            return StoppedError("stopped; it goes on from its latest checkpoint")
        said = [path for path in (log, self._worker_log) if _is_something(path)]
        see = f"; see {said[0]}" if said else ""
        return JobFailedError(
            f"its worker died (killed, or out of memory?){see}",
            is_final=False,
            log=said[0] if said else None,
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
