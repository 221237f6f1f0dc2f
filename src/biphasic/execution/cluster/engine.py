"""Parsl's executors for one run of a study: their start, their blocks, their failures, their end.

Parsl's own kernel polls from threads that wait forever for an interchange that has died. Here one
thread calls `look`, and every question to the interchange has a time limit.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import zmq
from parsl.executors import HighThroughputExecutor
from parsl.executors.errors import BadStateException
from parsl.executors.high_throughput.errors import (
    CommandClientBadError,
    CommandClientTimeoutError,
    VersionMismatch,
)
from parsl.jobs.states import JobState, JobStatus
from parsl.jobs.strategy import Strategy

from biphasic.child import PYTHON
from biphasic.execution.cluster.providers import (
    COMMAND_SECONDS,
    SAYS,
    cancel_blocks,
    first_line,
    last_line,
    provider_of,
    run_command,
)
from biphasic.execution.cluster.site import Site, reachable_address
from biphasic.execution.job import ExecutorError
from biphasic.execution.slots import Nodes

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")

# Labels of the executors for jobs on one slot, and for groups of processes.
SINGLE, GROUPS = "slots", "groups"
_MOST_FAILED = 3  # blocks in a row that may fail before the run ends
_MOST_SUBMISSIONS = 30  # blocks in an hour, against floods of blocks that fail at once
_IDLE_SECONDS = 120.0  # a block without jobs ends after this time
_LOST_SECONDS = 600  # a node that is silent for this long; a first import of torch may be slow
_ANSWER_SECONDS = 30.0
_LAST_WORDS_SECONDS = 1.0  # time for the message with which an interchange ends itself
# Commands that start one process on each node of a block.
_LAUNCH = {
    "slurm": "srun --nodes={0} --ntasks={0} --ntasks-per-node=1 --cpu-bind=none "
    "--kill-on-bad-exit=1 --unbuffered",
    "pbs": "mpiexec -n {0} -ppn 1",
    "lsf": "jsrun -n {0} -r 1",
}
_REFUSED = "Failed to start block {}: "  # start of Parsl's message; the scheduler's own follows


@dataclass(frozen=True)
class Block:
    """A batch job that runs our jobs."""

    label: str  # its executor
    id: str  # its number in this executor
    batch: str  # its identifier in the scheduler
    is_over: bool  # it has ended
    is_queued: bool  # it has not started
    failure: str = ""  # why it failed, in one line; empty if it did not


class Engine:
    """Parsl's executors of a site."""

    def __init__(
        self, site: Site, folder: Path, *, submissions: deque[float], group_nodes: int = 0
    ) -> None:
        """Start the executors; blocks follow with the first jobs."""
        # The folder, on a file system that nodes share, is for scripts, logs and certificates.
        # `submissions` are the times of recent ones, also of engines before this one. `group_nodes`
        # are the nodes of a group of processes; 0 if there are no groups.
        self._site, self._folder, self._submissions = site, folder, submissions
        self._strategy = Strategy(strategy="htex_auto_scale", max_idletime=_IDLE_SECONDS)
        self._executors: dict[str, _Executor] = {}
        self._providers: dict[str, Any] = {}
        self._most: dict[str, int] = {}
        self._deaf: set[str] = set()  # executors whose interchange does not answer
        self.group = Nodes()
        nodes = {SINGLE: site.nodes_per_block, **({GROUPS: group_nodes} if group_nodes else {})}
        if group_nodes > 1:
            launch = tuple(_LAUNCH[site.scheduler].format(group_nodes).split())
            self.group = Nodes(group_nodes, launch, str(folder))
        self._address = reachable_address(site)
        try:
            for label, count in nodes.items():
                self._start(label, nodes=count)
        except BaseException:
            self.stop()
            raise

    def _start(self, label: str, *, nodes: int) -> None:
        executor = parsl_executor(self._site, label, nodes=nodes, address=self._address)
        executor.run_id, executor.run_dir = uuid.uuid4().hex, str(self._folder)
        provider = self._providers[label] = cast("Any", executor.provider)
        if hasattr(provider, "script_dir"):
            provider.script_dir = str(self._folder / "scripts")
            Path(provider.script_dir).mkdir(parents=True, exist_ok=True)
        provider.seconds, provider.submissions = self._site.poll_seconds, self._submissions
        self._most[label] = provider.max_blocks
        self._executors[label] = executor
        executor.start()
        # Without a limit, a job that no interchange has connected to take would be sent for ever.
        executor.outgoing_q.zmq_socket.setsockopt(zmq.SNDTIMEO, int(1000 * _ANSWER_SECONDS))
        self._strategy.add_executors([executor])

    def submit(
        self, label: str, function: Callable[[_Argument], _Result], argument: _Argument
    ) -> Future[_Result]:
        """Call a function in a process of a node; the call ends only if the engine lives on."""
        executor, future = self._executors[label], Future[_Result]()
        try:
            submitted = executor.submit(function, {}, argument)
        except zmq.Again:
            self._deaf.add(label)
        except Exception:
            if not executor.bad_state_is_set:
                raise
        else:
            submitted.add_done_callback(partial(_pass_on, future))
        return future

    def look(self) -> str:
        """Ask about blocks, start or end some; return why the engine must be replaced, if so."""
        for label, executor in self._executors.items():
            problem = self._look_at(label, executor)
            if isinstance(reason := executor.executor_exception, VersionMismatch):
                raise ExecutorError(
                    f"nodes have {reason.manager_version}, and this machine has "
                    f"{reason.interchange_version}; load the same Python on both"
                )
            if problem:
                return problem
        return ""

    def _look_at(self, label: str, executor: _Executor) -> str:
        if end := _end_of_interchange(label, executor):
            return end
        if executor.bad_state_is_set:
            return f"Parsl's executor for {label} has failed"
        try:
            executor.poll_facade()
            # As many blocks as the site allows, and no more submissions than it allows an hour.
            provider, now = self._providers[label], time.monotonic()
            while self._submissions and now - self._submissions[0] > 3600:
                self._submissions.popleft()
            active = sum(not status.terminal for status in executor.status_facade.values())
            is_free = len(self._submissions) < _MOST_SUBMISSIONS
            # One at a time: a scheduler that is away for a moment must not fail several at once.
            room = 1 if is_free and now >= provider.pause_until else 0
            provider.max_blocks = min(self._most[label], active + room)
            self._strategy.strategize([executor])
        except (CommandClientTimeoutError, CommandClientBadError):
            self._deaf.add(label)
        if label not in self._deaf:
            return ""
        end = _end_of_interchange(label, executor)  # it may have ended while it was asked
        return end or f"Parsl's interchange for {label} does not answer"

    def blocks(self) -> list[Block]:
        """Return all blocks, as the scheduler described them last, in the order of submission."""
        return [
            Block(
                label,
                block,
                executor.blocks_to_job_id.get(block, ""),
                is_over=status.terminal,
                is_queued=status.state == JobState.PENDING,
                failure=self._failure(executor, block, status),
            )
            for label, executor in self._executors.items()
            # Parsl's order differs.
            for block, status in sorted(
                dict(executor.status_facade).items(), key=lambda item: int(item[0])
            )
        ]

    def trouble(self, *, most: int = _MOST_FAILED) -> str:
        """Return why the latest blocks failed, if as many as `most` did so in a row."""
        blocks = [block for block in self.blocks() if block.is_over]
        for label in self._executors:
            ended = [block.failure for block in blocks if block.label == label]
            if len(ended) >= most and all(ended[-most:]):
                return ended[-1]
        return ""

    def _failure(self, executor: _Executor, block: str, status: JobStatus) -> str:
        """Return why a block failed, in one line; empty if it did not."""
        if block not in executor.blocks_to_job_id:  # the scheduler refused it
            return first_line(status.message or "").removeprefix(_REFUSED.format(block))
        if status.state != JobState.MISSING:  # its nodes have connected
            return ""
        if status.message and status.message.startswith(SAYS):
            return status.message
        first, last = self._site.ports
        text = f"its nodes did not connect to {self._address}, ports {first} to {last}"
        if printed := last_line(status.stderr_summary or ""):
            return f"{text}; the block printed: {printed}"
        return f"{text}, or they do not see {self._folder}"

    def silence(self) -> str:
        """Return why the scheduler does not answer, in one line; empty if it does."""
        return next(filter(None, (one.silence for one in self._providers.values())), "")

    def queue(self) -> str:
        """Describe the blocks that wait in the scheduler's queue, in one line."""
        queued = [block.batch for block in self.blocks() if block.is_queued and block.batch]
        if not queued:
            return "no batch job is in the scheduler's queue"
        text = f"batch jobs {', '.join(queued)} wait in the scheduler's queue"
        if self._site.scheduler != "slurm":
            return text
        command = f"squeue --noheader --format=%r --jobs={','.join(queued)}"
        _, printed, _ = run_command(command, COMMAND_SECONDS)
        reasons = ", ".join(dict.fromkeys(printed.splitlines()))
        return f"{text} ({reasons})" if reasons else text

    def cancel(self) -> list[str]:
        """Cancel all blocks; return the batch jobs that the scheduler could not be asked to."""
        if self._site.scheduler == "local":
            for label, executor in self._executors.items():
                self._providers[label].cancel(list(executor.job_ids_to_block))
            return []
        batches = [block.batch for block in self.blocks() if block.batch and not block.is_over]
        return [] if cancel_blocks(self._site, batches) else batches

    def stop(self) -> None:
        """End Parsl's processes on this machine."""
        for executor in self._executors.values():
            executor.shutdown()


class _Executor(HighThroughputExecutor):
    """An executor whose interchange must answer in time."""

    def scale_in(self, blocks: int, max_idletime: float | None = None) -> list[str]:
        # Asked to end no block, Parsl 2026.10 ends all that have not connected yet.
        return super().scale_in(blocks, max_idletime) if blocks else []

    def connected_managers(self) -> list[dict[str, Any]]:
        return self.command_client.run("MANAGERS", timeout_s=_ANSWER_SECONDS)

    def connected_blocks(self) -> list[str]:
        return self.command_client.run("CONNECTED_BLOCKS", timeout_s=_ANSWER_SECONDS)

    def _hold_manager(self, manager_id: str) -> None:
        self.command_client.run(["HOLD_MANAGER", manager_id], timeout_s=_ANSWER_SECONDS)


def parsl_executor(site: Site, label: str, *, nodes: int, address: str) -> _Executor:
    """Return Parsl's executor for blocks of some nodes."""
    is_group = label == GROUPS
    gpus = 0 if is_group else site.gpus_per_node * site.jobs_per_gpu
    return _Executor(
        label=label,
        provider=provider_of(site, nodes=nodes, is_group=is_group),
        interchange_launch_cmd=[*PYTHON, "-m", "biphasic.execution.cluster.interchange"],
        address=address,
        worker_port_range=site.ports,
        max_workers_per_node=1 if is_group else site.slots_per_node,
        available_accelerators=gpus,
        cpu_affinity="block" if site.pin_cores and not is_group else "none",
        heartbeat_period=_LOST_SECONDS // 10,
        heartbeat_threshold=_LOST_SECONDS,
        drain_period=site.walltime_seconds - site.drain_seconds,
        address_probe_timeout=30,
        block_error_handler=False,
    )


def _end_of_interchange(label: str, executor: _Executor) -> str:
    """Return how an executor's interchange ended; empty if it runs."""
    process = executor.interchange_proc
    if process is None or process.poll() is None:
        return ""
    time.sleep(_LAST_WORDS_SECONDS)
    return f"Parsl's interchange for {label} ended with exit code {process.returncode}"


def _pass_on(future: Future[Any], submitted: Future[Any]) -> None:
    """Pass on the result of a call, unless the executor as a whole has failed."""
    error = submitted.exception()
    if error is None:
        future.set_result(submitted.result())
    elif not isinstance(error, BadStateException):
        future.set_exception(error)
