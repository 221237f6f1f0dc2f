"""The interface of executors, which run the jobs of a study."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Protocol

from biphasic.config import Config
from biphasic.execution.job import LoadJob, Progress
from biphasic.execution.worker import WorkerProcess
from biphasic.locks import Say
from biphasic.plugins import Plugin

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
