"""A worker process as its parent sees it: it runs one job at a time and reports events."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from biphasic.errors import (
    BiphasicError,
    DoneElsewhereError,
    LockHeldError,
    StoppedError,
    StudyError,
)
from biphasic.execution.job import JobFailedError, Progress

STOP_SECONDS = 20.0  # time that stopping workers have to save their progress


class WorkerProcess:
    """A process that runs jobs, started with its first job and restarted after it dies."""

    def __init__(
        self,
        store: Path,
        *,
        module: str,
        num_threads: int,
        log_folder: Path,
        name: str,
        environment: Mapping[str, str],
    ) -> None:
        """Prepare a process that runs `module`, with variables beside those of this one."""
        self._store, self._module, self._num_threads = store, module, num_threads
        self._logs, self._log = log_folder, log_folder / f"{name}.log"
        self._environment = environment
        self.is_stopped = False
        self._process: subprocess.Popen[str] | None = None
        # Prevents a process from starting after the stop request.
        self._lock = threading.Lock()

    def run(
        self, job_id: str, watch: Callable[[Progress], None], *, environment: Mapping[str, str]
    ) -> None:
        """Run a job; `environment` has variables for the processes that it starts."""
        process = self._ready()
        if process.stdin is None or process.stdout is None:
            raise StudyError("a worker was started without pipes")
        log = self._logs / f"{job_id}.log"
        given = {"job": job_id, "log": str(log), "environment": dict(environment)}
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
            elif kind == "elsewhere":
                raise DoneElsewhereError("another process finished it")
            elif kind == "taken":
                raise LockHeldError(event["error"], event["owner"])
            elif kind == "stopped":
                raise self._stopped(process, event["error"])
            else:
                raise JobFailedError(
                    event["error"],
                    is_final=event["is_final"],
                    log=log if log.is_file() else None,
                    divergence=event.get("divergence", ""),
                )
        raise self._died(process, log)

    def ask_to_stop(self) -> None:
        """Ask the process to save its progress and exit; it accepts no more jobs."""
        with self._lock:
            self.is_stopped = True
            if self._process is not None and self._process.stdin is not None:
                with suppress(BrokenPipeError, ValueError):
                    self._process.stdin.close()

    def end(self) -> None:
        """Wait for the process to exit; kill it after `STOP_SECONDS`."""
        if self._process is None:
            return
        try:
            self._process.wait(STOP_SECONDS)
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
            if self.is_stopped:
                raise StoppedError("not started: the study was stopped")
            if self._process is not None and self._process.poll() is not None:
                self.close()
                self._process = None
            if self._process is None:
                self._process = self._start()
            return self._process

    def _stopped(self, process: subprocess.Popen[str], message: str) -> BiphasicError:
        """Return the error of a stopped job: our own request, or an external signal."""
        if self.is_stopped:
            return StoppedError(message)
        # The worker accepts no more jobs: wait for its exit, or the next job would go to it.
        process.kill()
        process.wait()
        return JobFailedError(f"its worker was terminated; {message}")

    def _died(self, process: subprocess.Popen[str], log: Path) -> BiphasicError:
        # A dying process closes its pipes first: wait, or the next job would go to it.
        process.kill()
        process.wait()
        if self.is_stopped:
            return StoppedError("stopped; it resumes from its latest checkpoint")
        logs = (path for path in (log, self._log) if path.is_file() and path.stat().st_size > 0)
        first = next(logs, None)
        see = f"; see {first}" if first else ""
        return JobFailedError(f"its worker died (killed, or out of memory?){see}", log=first)

    def _start(self) -> subprocess.Popen[str]:
        threads = str(self._num_threads)
        with self._log.open("a", encoding="utf-8") as log:
            return subprocess.Popen(  # noqa: S603 - our own module, no shell
                [sys.executable, "-m", self._module, str(self._store), threads],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                env={
                    **os.environ,
                    **self._environment,
                    "OMP_NUM_THREADS": threads,
                    "TOKENIZERS_PARALLELISM": "false",
                },
            )
