"""The local engine: jobs on worker processes of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any

from biphasic.errors import StudyError
from biphasic.study.jobs import Job, Progress

Watch = Callable[[Job, Progress], None]
_Queued = tuple[Job, "Future[None]"]


class LocalEngine:
    """Runs jobs on `num_workers` processes with `num_threads` threads each.

    A job's result does not depend on how many workers there are, nor on what a worker did before;
    it may depend on `num_threads`, because sums are then taken in another order.
    """

    def __init__(
        self, *, num_workers: int, num_threads: int, log_folder: Path, watch: Watch
    ) -> None:
        """Start the workers.

        Args:
            num_workers: Jobs that run at once.
            num_threads: Threads per job.
            log_folder: Where each worker's log goes.
            watch: Told about progress, from threads of the engine.
        """
        self._queue: SimpleQueue[_Queued | None] = SimpleQueue()
        self._watch = watch
        log_folder.mkdir(parents=True, exist_ok=True)
        self._workers = [
            _Worker(log_folder / f"worker-{index}.log", num_threads) for index in range(num_workers)
        ]
        self._threads = [
            threading.Thread(target=self._attend, args=(worker,), daemon=True)
            for worker in self._workers
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> Future[None]:
        """Queue a job; its future raises `StudyError` if it fails."""
        future: Future[None] = Future()
        self._queue.put((job, future))
        return future

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the workers at once; nothing that they finished is lost."""
        for _ in self._threads:
            self._queue.put(None)
        for worker in self._workers:
            worker.stop()
        for thread in self._threads:
            thread.join()
        for worker in self._workers:
            worker.close()

    def _attend(self, worker: _Worker) -> None:
        while queued := self._queue.get():
            job, future = queued
            try:
                worker.run(job, lambda progress, job=job: self._watch(job, progress))
            except Exception as error:  # noqa: BLE001 - whoever waits for the future is told
                future.set_exception(error)
            else:
                future.set_result(None)


class _Worker:
    def __init__(self, log: Path, num_threads: int) -> None:
        self._log, self._num_threads = log, num_threads
        self._is_stopped = False
        self._process = self._start()

    def run(self, job: Job, watch: Callable[[Progress], None]) -> None:
        """Do a job.

        Raises:
            StudyError: It failed; the message says why.
        """
        if self._is_stopped:
            raise StudyError(f"{job.label}: not tried, the study was stopped")
        if self._process.poll() is not None:
            self.close()
            self._process = self._start()
        process = self._process
        if process.stdin is None or process.stdout is None:
            raise StudyError("a worker was started without pipes")
        try:
            process.stdin.write(job.model_dump_json() + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            self._end()
            raise StudyError(f"{job.label}: its worker died; see {self._log}") from None
        for line in process.stdout:
            event: dict[str, Any] = json.loads(line)
            kind = event.pop("event")
            if kind == "finished":
                return
            if kind == "failed":
                raise StudyError(f"{job.label}: {event['error']}")
            watch(Progress(**event))
        self._end()
        raise StudyError(
            f"{job.label}: its worker died (killed, or out of memory?); see {self._log}"
        )

    def stop(self) -> None:
        self._is_stopped = True
        self._end()

    def _end(self) -> None:
        # A dying process closes its pipes first: without waiting, the next job would go to it.
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Close the pipes; nobody may be reading them."""
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                if pipe:
                    pipe.close()

    def _start(self) -> subprocess.Popen[str]:
        threads = str(self._num_threads)
        with self._log.open("a", encoding="utf-8") as log:
            return subprocess.Popen(  # noqa: S603 - our own module, no shell
                [sys.executable, "-m", "biphasic.study.worker", threads],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                env={**os.environ, "OMP_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"},
            )
