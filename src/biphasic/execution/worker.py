"""A long-lived worker, and its parent's side: jobs and events go through pipes, as JSON.

Other output goes to the job's log. When standard input closes, or on SIGTERM or SIGUSR1, the
running job is asked to stop: a worker exits soon after its parent, however that ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from biphasic.child import PYTHON, Child, messages, variables_set
from biphasic.errors import (
    BiphasicError,
    DoneElsewhereError,
    LockHeldError,
    LostRankError,
    StoppedError,
    os_error_text,
)
from biphasic.execution.job import (
    Job,
    JobFailedError,
    LoadJob,
    Progress,
    described,
    made_again,
    throttled,
)
from biphasic.plugin_code import error_of_plugin

_EXIT_SECONDS = 15.0
TERMINATING = (signal.SIGTERM, signal.SIGUSR1)  # which schedulers and service managers send
STOP_SECONDS = 20.0  # after which its parent kills a worker that was asked to stop


def serve(load_job: LoadJob) -> None:
    """Run jobs until the input ends; the arguments are the store's folder and the threads."""
    store, num_threads = Path(sys.argv[1]), int(sys.argv[2])
    # The parent handles Ctrl-C and asks its workers to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Events have a descriptor of their own: what libraries print goes to standard error.
    events = os.dup(1)
    os.dup2(2, 1)
    jobs: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
    is_over = threading.Event()
    # In a thread, so that the end of the input, as when the parent dies, is seen during a job.
    threading.Thread(target=_read_jobs, args=(jobs, is_over), daemon=True).start()
    for number in TERMINATING:
        signal.signal(number, lambda *_: _stop(jobs, is_over))
    prepare_torch(num_threads)
    while (given := jobs.get()) is not None:
        _run(partial(load_job, store), given, events, is_over)


def _read_jobs(jobs: SimpleQueue[dict[str, Any] | None], is_over: threading.Event) -> None:
    for line in sys.stdin:
        jobs.put(json.loads(line))
    _stop(jobs, is_over)


def _stop(jobs: SimpleQueue[dict[str, Any] | None], is_over: threading.Event) -> None:
    """Let the running job save its progress, then exit."""
    is_over.set()
    jobs.put(None)
    exit_later(0)


def prepare_torch(num_threads: int) -> None:
    """Tune the allocator, import torch, and set its threads."""
    from biphasic.training.memory import tune_allocator  # noqa: PLC0415

    tune_allocator()
    import torch  # noqa: PLC0415 - after the allocator is tuned

    torch.set_num_threads(num_threads)


def exit_later(code: int) -> None:
    """Exit the process if its job has not stopped after some seconds; the next run resumes it."""
    timer = threading.Timer(_EXIT_SECONDS, os._exit, args=(code,))
    timer.daemon = True
    timer.start()


def send(events: int, **event: Any) -> None:
    """Write an event to a pipe; exit if the parent, which reads it, has exited."""
    try:
        # In one call: other threads and processes may write to the same pipe.
        os.write(events, (json.dumps(event) + "\n").encode())
    except BrokenPipeError:  # results are in the store
        os._exit(1)


def _run(
    load: Callable[[str], Job], given: Mapping[str, Any], events: int, is_over: threading.Event
) -> None:
    report = throttled(lambda progress: send(events, event="progress", **vars(progress)))
    try:
        with _logged(Path(given["log"])), variables_set(given["environment"]):
            outcome = _outcome(lambda: load(given["job"]).run(report, should_stop=is_over.is_set))
    except OSError as error:  # the log cannot be made
        told = {**described(error), "error": os_error_text(error)}
        outcome = {"event": "failed", "is_final": False, **told}
    send(events, **outcome)


def _outcome(work: Callable[[], None]) -> dict[str, Any]:
    """Run some work; return the event that describes its outcome."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - a worker survives any job's failure and logs it
        told = {"event": "failed", **described(error)}
        if isinstance(error, BiphasicError):
            # Retrying does not help with invalid settings or data, but a lost rank or a full disk
            # may be transient.
            is_luck = isinstance(error, LostRankError) or isinstance(error.__cause__, OSError)
            return told | {"is_final": not is_luck}
        traceback.print_exc()
        if isinstance(error, OSError):
            return told | {"error": os_error_text(error), "is_final": False}
        of_plugin = error_of_plugin(error)
        return told | {"error": str(of_plugin or told["error"]), "is_final": of_plugin is not None}
    return {"event": "finished"}


@contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Redirect output to a file; delete it if it is empty."""
    before = os.dup(2)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        yield
    finally:
        sys.stderr.flush()
        sys.stdout.flush()
        is_empty = os.fstat(log).st_size == 0
        for descriptor in (1, 2):
            os.dup2(before, descriptor)
        os.close(log)
        os.close(before)
        if is_empty:
            path.unlink(missing_ok=True)


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
        launch: Sequence[str] = (),
    ) -> None:
        """Prepare a process that runs `module`, with variables beside those of this one."""
        threads = {"OMP_NUM_THREADS": str(num_threads), "TOKENIZERS_PARALLELISM": "false"}
        variables = {**environment, **threads}
        # On another machine, the process does not inherit them.
        begin = (*launch, "env", *(f"{n}={v}" for n, v in variables.items())) if launch else ()
        super().__init__(
            [*begin, *PYTHON, "-m", module, str(store), str(num_threads)],
            log=log_folder / f"{name}.log",
            environment=variables,
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
        try:
            event = self._outcome(stdout, watch)
        except Exception:
            # It still runs the job: the next one would go to it, and end when this one does.
            self.end()
            raise
        if event is None:
            raise self._died(log)
        if event["event"] == "finished":
            return
        error = made_again(event)
        if isinstance(error, StoppedError) and not self.is_stopped:
            # By a signal from elsewhere. It accepts no more jobs: wait for its exit, or the next
            # job would go to it.
            self.end()
            raise JobFailedError(f"its worker was terminated; {error}")
        if isinstance(error, StoppedError | LockHeldError | DoneElsewhereError):
            raise error
        raise JobFailedError(
            event["error"],
            is_final=event["is_final"],
            log=log if log.is_file() else None,
            divergence=event["fields"].get("divergence", ""),
        )

    def _outcome(
        self, stdout: IO[bytes], watch: Callable[[Progress], None]
    ) -> dict[str, Any] | None:
        """Pass progress on; return the event that ends the job, None if the process has ended."""
        for event in messages(stdout, "event", other=self.log):
            if event["event"] != "progress":
                return event
            del event["event"]
            watch(Progress(**event))
        return None

    def _died(self, log: Path) -> BiphasicError:
        # A dying process closes its pipes first: wait, or the next job would go to it.
        self.end()
        if self.is_stopped:
            return StoppedError("stopped; it resumes from its latest checkpoint")
        logs = (path for path in (log, self._log) if path.is_file() and path.stat().st_size > 0)
        first = next(logs, None)
        see = f"; see {first}" if first else ""
        return JobFailedError(f"its worker died (killed, or out of memory?){see}", log=first)
