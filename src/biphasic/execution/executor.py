"""Executors, which run the jobs of a study: their interface, and workers on this machine."""

from __future__ import annotations

import math
import signal
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import ClassVar, Literal, Protocol

from rich.console import Console

from biphasic.config import Config
from biphasic.errors import DoneElsewhereError, LockHeldError, StoppedError, StudyError
from biphasic.execution.display import job_bar
from biphasic.execution.job import Job, LoadJob, Progress, ShouldStop
from biphasic.execution.slots import Slot, check_cores, devices_environment, local_slots
from biphasic.execution.worker import STOP_SECONDS, TERMINATING, WorkerProcess
from biphasic.locks import Say
from biphasic.plugins import Plugin
from biphasic.progress import say_on

# Progress callback with a job's identity, called from executor threads.
Watch = Callable[[str, Progress], None]


class Executor(Protocol):
    """An executor at work."""

    @property
    def num_slots(self) -> int:
        """How many jobs to submit at once; a job of several processes takes as many slots."""
        ...

    def submit(self, job_id: str) -> Future[None]:
        """Run a job as soon as slots are free.

        The future raises `JobFailedError`; `LockHeldError` or `DoneElsewhereError` if another
        process runs the job or has finished it; `StoppedError` if it was stopped on request.
        """
        ...


@dataclass(frozen=True)
class Work:
    """What an executor is given to run the jobs of a study.

    Attributes:
        store: Folder with jobs and results. Processes on other machines need it at the same path.
        folder: Folder of the study; logs are in `logs` there.
        load_job: Loads a job from the store by its identity. `job.run(report, should_stop=...)`
            runs it in this process.
        worker: Module of the processes that run jobs; `process` starts them.
        processes: Processes that train one model together.
        watch: Takes the progress of a job, by its identity.
        say: Prints a line.
    """

    store: Path
    folder: Path
    load_job: LoadJob
    worker: str
    processes: int
    watch: Watch
    say: Say

    def process(
        self,
        name: str,
        *,
        launch: Sequence[str] = (),
        threads: int = 1,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> WorkerProcess:
        """Return a process that runs jobs one after another; it starts with its first job.

        Args:
            name: Name of its log.
            launch: Command that starts the process, such as `("ssh", "node1")`; none for this
                machine. It must pass standard input and output on.
            threads: Compute threads.
            environment: Variables of the process.
        """
        logs = self.folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        return WorkerProcess(
            self.store,
            module=self.worker,
            num_threads=threads,
            log_folder=logs,
            name=name,
            environment=environment,
            launch=launch,
        )


class ExecutorConfig(Config):
    """Where jobs run; this machine, clusters and plugins alike.

    Nothing here is part of an identity: an executor decides where and when jobs run, and not what
    they compute.
    """

    plugin: ClassVar[Plugin | None] = None  # set by biphasic; None for our own
    executor: str
    """Its name, or what names a plugin."""

    @property
    @abstractmethod
    def num_slots(self) -> int:
        """How many jobs run at once."""

    def check(self, folder: Path, *, processes: int) -> None:
        """Check that jobs of a study in `folder` can run; by default, all can.

        Raises:
            ConfigError: They cannot; the message states what would work.
        """

    @abstractmethod
    def start(self, work: Work) -> AbstractContextManager[Executor]:
        """Return a context in which jobs run; at its end, running jobs are asked to stop."""


# Ctrl-C, and signals that schedulers and init systems send before they kill.
STOPPING = (signal.SIGINT, *TERMINATING)
_TAKEN_SECONDS = 2.0


class WorkerPool:
    """Runs jobs on one long-lived process per slot."""

    # Results depend neither on slots nor on a worker's earlier jobs, but on threads: order of sums.

    def __init__(self, work: Work, workers: Mapping[Slot, WorkerProcess]) -> None:
        """Prepare; each worker starts with its first job."""
        self._work, self._workers = work, dict(workers)
        self.num_slots = len(workers)
        self._free = [*workers]
        self._queue: deque[tuple[str, int, Future[None]]] = deque()
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(len(workers), thread_name_prefix="biphasic-slot")

    def submit(self, job_id: str) -> Future[None]:
        """Queue a job; it runs when enough slots are free."""
        needed = self._work.load_job(self._work.store, job_id).num_slots
        if needed > self.num_slots:
            raise StudyError(f"job {job_id}: needs {needed} slots; there are {self.num_slots}")
        future: Future[None] = Future()
        with self._lock:
            self._queue.append((job_id, needed, future))
        self._dispatch()
        return future

    def __enter__(self) -> WorkerPool:
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
                lambda progress: self._work.watch(job_id, progress),
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


class Local(ExecutorConfig):
    """Processes on this machine."""

    executor: Literal["local"] = "local"  # type: ignore[assignment]
    workers: int | None = None
    """Parallel jobs; by default one on each GPU, or as many as there are cores for."""
    threads: int = 1
    """Compute threads of a job."""
    per_gpu: int = 1
    """Jobs that share a GPU."""

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Its shares of the machine."""
        return local_slots(
            num_workers=self.workers, num_threads=self.threads, jobs_per_gpu=self.per_gpu
        )

    @property
    def num_slots(self) -> int:
        """One for each worker."""
        return len(self.slots)

    def check(self, folder: Path, *, processes: int) -> None:
        """Refuse numbers that this machine cannot have."""
        del folder, processes
        if self.workers is None and self.per_gpu == 1:
            check_cores(num_threads=self.threads)  # without torch, which looks for GPUs
        else:
            _ = self.slots

    def start(self, work: Work) -> WorkerPool:
        """Return one process for each slot."""
        return WorkerPool(
            work,
            {
                slot: work.process(
                    f"worker-{slot.index}",
                    threads=self.threads,
                    environment=devices_environment([slot]),
                )
                for slot in self.slots
            },
        )


def run_here(job: Job, *, console: Console, deadline: float = math.inf) -> None:
    """Run a job here, or wait for its owner; at a signal or the deadline it saves and stops."""
    say = say_on(console)
    is_said = False
    with stopped_by_interrupt(say) as is_asked:

        def should_stop() -> bool:
            return is_asked() or time.monotonic() >= deadline

        while True:
            try:
                with job_bar(console, job.label) as report, suppress(DoneElsewhereError):
                    job.run(report, should_stop=should_stop)
            except LockHeldError as error:
                if not is_said:
                    say(f"waiting for {job.label}, which {error.owner} is running")
                    is_said = True
                if should_stop():
                    raise StoppedError("stopped; run again to resume") from None
                time.sleep(_TAKEN_SECONDS)
            else:
                if is_asked():  # in its last seconds; the command would go on with what follows
                    raise StoppedError(f"stopped after {job.label}; run again to resume")
                return


@contextmanager
def stopped_by_interrupt(say: Callable[[str], None]) -> Iterator[ShouldStop]:
    """Yield a function that returns whether SIGINT or SIGTERM came; a second one interrupts."""
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set  # signals belong to the main thread
        return

    def note(number: int, frame: FrameType | None) -> None:
        if pressed.is_set():
            signal.default_int_handler(number, frame)
        pressed.set()
        say("stopping: saving progress; press Ctrl-C again to quit immediately")

    before = {number: signal.signal(number, note) for number in STOPPING}
    try:
        yield pressed.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
