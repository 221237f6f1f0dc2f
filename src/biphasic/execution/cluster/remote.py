"""What runs on a node: Parsl calls `run_job`, in a small process per slot, for a worker process."""

from __future__ import annotations

import os
import platform
import socket
import sys
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from biphasic.config import Config
from biphasic.errors import BiphasicError, DoneElsewhereError, LockHeldError, StoppedError
from biphasic.execution.job import JobFailedError, Progress, RequeuedError
from biphasic.execution.slots import Nodes
from biphasic.execution.worker import STOP_SECONDS, WorkerProcess
from biphasic.files import write_text

# Variable of a block with the time of its limit, in seconds since 1970 by the node's clock.
BLOCK_END = "BIPHASIC_BLOCK_END"
STOP = "stop"  # file in a run's folder that asks its jobs to stop
RUNNING = "running"  # folder of a run with a file for each job that runs
_LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class RemoteJob:
    """A job to run on a node."""

    job: str  # its identity
    store: Path
    worker: str  # module that calls `biphasic.execution.worker.serve` when it is run
    threads: int
    logs: Path
    run: Path  # folder of this run of the study
    drain_seconds: int  # time before the block's limit at which the job saves its progress
    label: str  # executor of Parsl
    nodes: Nodes = field(default_factory=Nodes)  # nodes that its processes are spread over


class RemoteProgress(Config):
    """The file of a job that runs on a node."""

    job: str
    label: str
    """Executor of Parsl."""
    block: str
    host: str
    first: int = 0
    """Steps that earlier tries had saved."""
    done: int = 0
    total: int = 0
    text: str = ""


def run_job(request: RemoteJob) -> BiphasicError | None:
    """Run a job; return the error that ended it, which Parsl pickles, or None."""
    if (request.run / STOP).exists():  # it waited for this process
        return StoppedError("not started: the study was stopped")
    worker = _worker(request)
    with closing(_Attendant(request, worker)) as attendant:
        try:
            worker.run(request.job, attendant.note, environment=request.nodes.environment())
        except StoppedError as error:
            worker.end(STOP_SECONDS)
            worker.close()
            if attendant.is_drained:
                return RequeuedError("its block reached the time limit; it resumes in another one")
            return error
        except (LockHeldError, DoneElsewhereError, JobFailedError) as error:
            return error
    return None


def describe_node(_: None) -> dict[str, Any]:
    """Return what a node has: versions, cores and GPUs."""
    import torch  # noqa: PLC0415

    return {
        "host": _host(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cores": len(os.sched_getaffinity(0)),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def _host() -> str:
    # Slurm's name of a node can differ from that of its machine.
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


_kept: WorkerProcess | None = None


def _worker(request: RemoteJob) -> WorkerProcess:
    """Return the worker process of this slot; a stopped one is replaced."""
    global _kept  # noqa: PLW0603 - one for each process of Parsl
    if _kept is None or _kept.is_stopped:
        request.logs.mkdir(parents=True, exist_ok=True)
        name = f"{socket.gethostname()}-{os.getpid()}"
        _kept = WorkerProcess(
            request.store,
            module=request.worker,
            num_threads=request.threads,
            log_folder=request.logs,
            name=f"worker-{name}",
            environment={},
        )
    return _kept


class _Attendant:
    """Writes a job's progress, and stops it on request or before the block's limit."""

    def __init__(self, request: RemoteJob, worker: WorkerProcess) -> None:
        self._request, self._worker = request, worker
        self._path = request.run / RUNNING / f"{request.job}.json"
        self._over = threading.Event()
        self._record = RemoteProgress(
            job=request.job,
            label=request.label,
            block=os.environ.get("PARSL_WORKER_BLOCK_ID", ""),
            host=_host(),
        )
        self.is_drained = False
        self._thread = threading.Thread(target=self._attend, daemon=True)
        self._thread.start()

    def note(self, progress: Progress) -> None:
        """Keep the latest progress; notes go to the block's log."""
        if progress.note:
            sys.stderr.write(f"{self._request.job}: {progress.note}\n")
        update = {"done": progress.done, "total": progress.total, "text": progress.text}
        if not self._record.total:
            update["first"] = progress.done
        self._record = self._record.model_copy(update=update)

    def close(self) -> None:
        """Stop watching, and delete the file."""
        self._over.set()
        self._thread.join()
        self._path.unlink(missing_ok=True)

    def _is_asked_to_stop(self) -> bool:
        with suppress(OSError):  # a network file system may fail once: asked again
            return (self._request.run / STOP).exists()
        return False

    def _attend(self) -> None:
        end = float(os.environ.get(BLOCK_END, "inf")) - self._request.drain_seconds
        written: RemoteProgress | None = None
        # Short jobs end before the first look, and cost no file.
        while not self._over.wait(_LOOK_SECONDS):
            if time.time() >= end:
                self.is_drained = True
            if self.is_drained or self._is_asked_to_stop():
                self._worker.ask_to_stop()
            if self._record is not written:
                written = self._record
                try:
                    write_text(self._path, written.model_dump_json(), is_flushed=False)
                except OSError as error:  # informational only: the job goes on
                    sys.stderr.write(f"{self._path}: {error.strerror}\n")
