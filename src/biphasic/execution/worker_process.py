"""A worker process as its parent sees it: it runs one job at a time and reports events."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from biphasic.child import Child
from biphasic.errors import BiphasicError, DoneElsewhereError, LockHeldError, StoppedError
from biphasic.execution.job import JobFailedError, Progress

STOP_SECONDS = 20.0  # time that stopping workers have to save their progress


class WorkerProcess(Child):
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
        threads = {"OMP_NUM_THREADS": str(num_threads), "TOKENIZERS_PARALLELISM": "false"}
        super().__init__(
            [sys.executable, "-m", module, str(store), str(num_threads)],
            log=log_folder / f"{name}.log",
            environment={**environment, **threads},
        )
        self._logs = log_folder

    def run(
        self, job_id: str, watch: Callable[[Progress], None], *, environment: Mapping[str, str]
    ) -> None:
        """Run a job; `environment` has variables for the processes that it starts."""
        if (pipes := self.started()) is None:
            raise StoppedError("not started: the study was stopped")
        stdin, stdout = pipes
        log = self._logs / f"{job_id}.log"
        given = {"job": job_id, "log": str(log), "environment": dict(environment)}
        try:
            stdin.write(json.dumps(given).encode() + b"\n")
            stdin.flush()
        except (BrokenPipeError, ValueError):  # it has ended, or was just asked to stop
            raise self._died(log) from None
        for line in stdout:
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
                if self.is_stopped:
                    raise StoppedError(event["error"])
                # By a signal from elsewhere. It accepts no more jobs: wait for its exit, or the
                # next job would go to it.
                self.end()
                raise JobFailedError(f"its worker was terminated; {event['error']}")
            else:
                raise JobFailedError(
                    event["error"],
                    is_final=event["is_final"],
                    log=log if log.is_file() else None,
                    divergence=event.get("divergence", ""),
                )
        raise self._died(log)

    def _died(self, log: Path) -> BiphasicError:
        # A dying process closes its pipes first: wait, or the next job would go to it.
        self.end()
        if self.is_stopped:
            return StoppedError("stopped; it resumes from its latest checkpoint")
        logs = (path for path in (log, self._log) if path.is_file() and path.stat().st_size > 0)
        first = next(logs, None)
        see = f"; see {first}" if first else ""
        return JobFailedError(f"its worker died (killed, or out of memory?){see}", log=first)
