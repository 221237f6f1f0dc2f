"""Parsl's executors for one run of a study: their start, their blocks, their failures, their end.

Parsl's own kernel is not used: it polls from threads that wait forever for an interchange that has
died, and its tasks then never end. Here one thread calls `look`, and every question to the
interchange has a time limit.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from parsl.executors import HighThroughputExecutor
from parsl.executors.errors import BadStateException
from parsl.executors.high_throughput.errors import (
    CommandClientBadError,
    CommandClientTimeoutError,
    VersionMismatch,
)
from parsl.jobs.states import JobState, JobStatus
from parsl.jobs.strategy import Strategy
from parsl.launchers import JsrunLauncher, MpiExecLauncher, SimpleLauncher, SrunLauncher
from parsl.providers import LocalProvider, LSFProvider, PBSProProvider, SlurmProvider
from parsl.providers.errors import SubmitException

from biphasic.execution.cluster.remote import BLOCK_END
from biphasic.execution.cluster.site import Site, is_batch_id, reachable_address
from biphasic.execution.job import ExecutorError
from biphasic.execution.nodes import Nodes

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")

SINGLE, GROUPS = "slots", "groups"
"""Labels of the executors for jobs on one slot, and for groups of processes."""
_MOST_FAILED = 3
"""Blocks in a row that may fail before the run ends."""
_PAUSE_SECONDS = 30.0
"""Pause after a submission that the scheduler refused; the second in a row is twice as long."""
_ANSWER_SECONDS = 30.0
_LAST_WORDS_SECONDS = 1.0
"""Time for the message with which an interchange ends itself."""
_LAUNCH = {
    "slurm": "srun --nodes={0} --ntasks={0} --ntasks-per-node=1 --cpu-bind=none "
    "--kill-on-bad-exit=1 --unbuffered",
    "pbs": "mpiexec -n {0} -ppn 1",
    "lsf": "jsrun -n {0} -r 1",
}
"""Commands that start one process on each node of a block."""
_LAUNCHERS = {
    "slurm": partial(SrunLauncher, overrides="--cpu-bind=none"),
    "pbs": MpiExecLauncher,
    "lsf": JsrunLauncher,
}
"""How Parsl starts itself on each node of a block."""
_CANCEL = {"slurm": "scancel", "pbs": "qdel", "lsf": "bkill"}
_SLURM_QUEUE = "squeue --me --noheader --states=all --format='%i %T'"
_SLURM_ANSWER = re.compile(r"([0-9]\S* +[A-Z_]+ *\n)*")
_SLURM_QUEUED = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD"}
_SLURM_ENDED = {
    "COMPLETED": JobState.COMPLETED,
    "CANCELLED": JobState.CANCELLED,
    "TIMEOUT": JobState.TIMEOUT,
    "PREEMPTED": JobState.TIMEOUT,
    "DEADLINE": JobState.TIMEOUT,
    "FAILED": JobState.FAILED,
    "NODE_FAIL": JobState.FAILED,
    "BOOT_FAIL": JobState.FAILED,
    "OUT_OF_MEMORY": JobState.FAILED,
    "REVOKED": JobState.FAILED,
}
_REFUSED = "Failed to start block {}: "
"""Start of Parsl's message; the scheduler's own follows."""
_SAYS = "the scheduler says:"


@dataclass(frozen=True)
class Block:
    """A batch job that runs our jobs.

    Attributes:
        label: Its executor.
        id: Its number in this executor.
        batch: Its identifier in the scheduler.
        is_over: Whether it has ended.
        is_queued: Whether it has not started.
        failure: Why it failed, in one line; empty if it did not.
    """

    label: str
    id: str
    batch: str
    is_over: bool
    is_queued: bool
    failure: str = ""


class Engine:
    """Parsl's executors of a site."""

    def __init__(self, site: Site, folder: Path, *, group_nodes: int = 0) -> None:
        """Start the executors; blocks follow with the first jobs.

        Args:
            site: The site.
            folder: Folder for scripts, logs and certificates, on a file system that nodes share.
            group_nodes: Nodes of a group of processes; 0 if there are no groups.

        Raises:
            ConfigError: No address of this machine is known that nodes can reach.
        """
        self._site, self._folder = site, folder
        self._strategy = Strategy(strategy="htex_auto_scale", max_idletime=60 * site.idle_minutes)
        self._executors: dict[str, _Executor] = {}
        self._providers: dict[str, Any] = {}
        self._most: dict[str, int] = {}
        self._group = Nodes()
        nodes = {SINGLE: site.nodes_per_block, **({GROUPS: group_nodes} if group_nodes else {})}
        if group_nodes > 1:
            launch = tuple(_LAUNCH[site.scheduler].format(group_nodes).split())
            self._group = Nodes(group_nodes, launch, str(folder))
        self._address = reachable_address(site)
        try:
            for label, count in nodes.items():
                self._start(label, nodes=count)
        except BaseException:
            self.stop()
            raise

    def _start(self, label: str, *, nodes: int) -> None:
        executor = _executor(self._site, label, nodes=nodes, address=self._address)
        executor.run_id, executor.run_dir = uuid.uuid4().hex, str(self._folder)
        provider = self._providers[label] = cast("Any", executor.provider)
        if hasattr(provider, "script_dir"):
            provider.script_dir = str(self._folder / "scripts")
            Path(provider.script_dir).mkdir(parents=True, exist_ok=True)
        provider.seconds = self._site.poll_seconds
        self._most[label] = provider.max_blocks
        self._executors[label] = executor
        executor.start()
        self._strategy.add_executors([executor])

    @property
    def group(self) -> Nodes:
        """Return the nodes that a group of processes is spread over."""
        return self._group

    def submit(
        self, label: str, function: Callable[[_Argument], _Result], argument: _Argument
    ) -> Future[_Result]:
        """Call a function in a process of a node; the call ends only if the engine lives on."""
        executor, future = self._executors[label], Future[_Result]()
        try:
            submitted = executor.submit(function, {}, argument)
        except Exception:
            if not executor.bad_state_is_set:
                raise
        else:
            submitted.add_done_callback(partial(_pass_on, future))
        return future

    def look(self) -> str:
        """Ask about blocks, and start or end some; return why the engine must be replaced, if so.

        Raises:
            ExecutorError: Nodes have other versions of Python or Parsl than this machine.
        """
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
        process = executor.interchange_proc
        if process is not None and process.poll() is not None:
            time.sleep(_LAST_WORDS_SECONDS)
            return f"Parsl's interchange for {label} ended with exit code {process.returncode}"
        if executor.bad_state_is_set:
            return f"Parsl's executor for {label} has failed"
        try:
            executor.poll_facade()
            self._limit_blocks(label, executor)
            self._strategy.strategize([executor])
        except (CommandClientTimeoutError, CommandClientBadError):
            return f"Parsl's interchange for {label} does not answer"
        return ""

    def _limit_blocks(self, label: str, executor: _Executor) -> None:
        """Allow as many blocks as the site does, and no more submissions than it does an hour."""
        provider, now = self._providers[label], time.monotonic()
        while provider.submissions and now - provider.submissions[0] > 3600:
            provider.submissions.popleft()
        active = sum(not status.terminal for status in executor.status_facade.values())
        is_free = len(provider.submissions) < self._site.max_submissions_per_hour
        # One at a time: a scheduler that is away for a moment must not fail several at once.
        room = 1 if is_free and now >= provider.pause_until else 0
        provider.max_blocks = min(self._most[label], active + room)

    def blocks(self) -> list[Block]:
        """Return all blocks, as the scheduler described them last."""
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
            for block, status in _by_number(executor)
        ]

    def trouble(self, *, most: int = _MOST_FAILED) -> str:
        """Return why the latest blocks failed, if as many as `most` did so in a row."""
        for executor in self._executors.values():
            ended = [
                self._failure(executor, block, status)
                for block, status in _by_number(executor)
                if status.terminal
            ]
            if len(ended) >= most and all(ended[-most:]):
                return ended[-1]
        return ""

    def _failure(self, executor: _Executor, block: str, status: JobStatus) -> str:
        """Return why a block failed, in one line; empty if it did not."""
        if block not in executor.blocks_to_job_id:  # the scheduler refused it
            return _first_line(status.message or "").removeprefix(_REFUSED.format(block))
        if status.state != JobState.MISSING:  # its nodes have connected
            return ""
        if status.message and status.message.startswith(_SAYS):
            return status.message
        first, last = self._site.ports
        text = f"its nodes did not connect to {self._address}, ports {first} to {last}"
        if printed := _last_line(status.stderr_summary or ""):
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
        _, printed, _ = _run(command, self._site.command_seconds)
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


def cancel_blocks(site: Site, batches: list[str]) -> bool:
    """Cancel batch jobs; return whether the scheduler took the request."""
    known = [batch for batch in batches if is_batch_id(batch)]
    if not known or site.scheduler == "local":
        return True
    code, _, _ = _run(shlex.join([_CANCEL[site.scheduler], *known]), site.command_seconds)
    return code == 0


def _run(command: str, seconds: float) -> tuple[int, str, str]:
    """Run a command of the scheduler; return its exit code and what it printed.

    A command that does not end in time fails, like one of a scheduler that is away.
    """
    with subprocess.Popen(  # noqa: S602 - Parsl's commands need a shell
        command,
        shell=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            printed, complaint = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return 124, "", f"no answer within {seconds:g} seconds"
    return process.returncode, printed, complaint


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


def _executor(site: Site, label: str, *, nodes: int, address: str) -> _Executor:
    is_group = label == GROUPS
    gpus = 0 if is_group else site.gpus_per_node * site.jobs_per_gpu
    return _Executor(
        label=label,
        provider=_provider(site, nodes=nodes, is_group=is_group),
        interchange_launch_cmd=[sys.executable, "-m", "biphasic.execution.cluster.interchange"],
        address=address,
        worker_port_range=site.ports,
        max_workers_per_node=1 if is_group else site.slots_per_node,
        available_accelerators=gpus,
        cpu_affinity="block" if site.pin_cores and not is_group else "none",
        heartbeat_period=max(site.heartbeat_seconds // 10, 1),
        heartbeat_threshold=site.heartbeat_seconds,
        drain_period=site.walltime_seconds - site.drain_seconds,
        address_probe_timeout=30,
        block_error_handler=False,
    )


def _provider(site: Site, *, nodes: int, is_group: bool) -> Any:
    """Return Parsl's provider of blocks."""
    # A group starts its processes on other nodes by itself.
    launcher = _LAUNCHERS[site.scheduler]() if nodes > 1 and not is_group else SimpleLauncher()
    common: dict[str, Any] = {
        "nodes_per_block": nodes,
        "init_blocks": 0,
        "max_blocks": max(site.max_blocks * site.nodes_per_block // nodes, 1),
        # Parsl counts a slot for each node of a block; a group has one for all its nodes.
        "parallelism": nodes if is_group else 1,
        "worker_init": _prologue(site),
        "cmd_timeout": site.command_seconds,
        "launcher": launcher,
    }
    if site.scheduler == "local":
        return _Local(**common)
    common |= {"walltime": site.walltime, "scheduler_options": "\n".join(site.directives)}
    if site.scheduler == "slurm":
        # Parsl drops the seconds. A block that Slurm requeues would hide that its jobs were lost.
        own = (f"#SBATCH --time={site.walltime}", "#SBATCH --no-requeue")
        return _Slurm(
            **common | {"scheduler_options": "\n".join([*own, *site.directives])},
            partition=site.partition,
            account=site.account,
            cores_per_node=site.cores_per_node,
            gpus_per_node=site.gpus_per_node or None,
            exclusive=site.exclusive,
        )
    if site.scheduler == "pbs":
        gpus = f"ngpus={site.gpus_per_node}" if site.gpus_per_node else ""
        return _PBS(
            **common,
            queue=site.partition,
            account=site.account,
            cpus_per_node=site.cores_per_node or 1,
            select_options=gpus,
        )
    return _LSF(
        **common,
        queue=site.partition,
        project=site.account,
        cores_per_node=site.cores_per_node,
    )


def _prologue(site: Site) -> str:
    """Return the shell lines that prepare a node."""
    return "\n".join(
        [
            f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH",
            f"export {BLOCK_END}=$(( $(date +%s) + {site.walltime_seconds} ))",
            *(f"module load {module}" for module in site.modules),
            *site.setup,
        ]
    )


class _Polled:
    """A provider that is asked as often as the site says, and names the scheduler's own error."""

    seconds = 10.0
    silence = ""
    """Why the scheduler did not answer when it was asked last; empty if it did."""
    pause_until = 0.0
    """Time of the next submission, after the scheduler has refused one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.submissions: deque[float] = deque()
        self.silence = ""  # not of Parsl's questions at the start
        self._refused = 0

    @property
    def status_polling_interval(self) -> float:
        return self.seconds

    def submit(self, command: str, tasks_per_node: int, job_name: str = "biphasic") -> Any:
        self.submissions.append(time.monotonic())
        try:
            batch = super().submit(command, tasks_per_node, job_name)  # type: ignore[misc]
        except SubmitException as error:
            self.silence = ""  # it has answered
            self._refused += 1
            self.pause_until = time.monotonic() + _PAUSE_SECONDS * self._refused
            raise RuntimeError(_last_line(error.stderr or "") or error.message) from None
        self._refused = 0
        return batch


class _Local(_Polled, LocalProvider):  # pyright: ignore[reportIncompatibleMethodOverride]
    pass


class _Batch(_Polled):
    """A provider whose scheduler may be away for a while: blocks are then as they were."""

    cmd_timeout: int

    def execute_wait(self, cmd: str, timeout: int | None = None) -> tuple[int, str, str]:
        # Parsl's own raises an error after the time limit, and leaves the process behind.
        code, printed, complaint = _run(cmd, timeout or self.cmd_timeout)
        reason = _last_line(complaint) or f"exit code {code}"
        self.silence = f"{cmd.split(maxsplit=1)[0]}: {reason}" if code else ""
        return code, printed, complaint

    def _status(self) -> None:
        try:
            self._read_status()
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            self.silence = f"unreadable answer ({type(error).__name__}: {error})"

    def _read_status(self) -> None:
        super()._status()  # type: ignore[misc]


class _Slurm(_Batch, SlurmProvider):  # pyright: ignore[reportIncompatibleMethodOverride]
    resources: dict[str, dict[str, Any]]

    def _read_status(self) -> None:
        # Parsl takes each job for completed that Slurm's accounting does not have yet, and a
        # block for running forever when squeue has forgotten it.
        code, printed, _ = self.execute_wait(_SLURM_QUEUE)
        if code:
            return
        if not _SLURM_ANSWER.fullmatch(printed):
            raise ValueError(_first_line(printed))
        states = dict(line.split() for line in printed.splitlines())
        for batch, record in self.resources.items():
            if batch in states:
                record["missed"] = 0
                self._note(batch, states[batch])
            elif record.setdefault("missed", 0):  # forgotten: it was missing twice in a row
                self._note(batch, "COMPLETED")
            else:
                record["missed"] = 1

    def _note(self, batch: str, name: str) -> None:
        record = self.resources[batch]
        queued = JobState.PENDING if name in _SLURM_QUEUED else JobState.RUNNING
        is_told = name not in {"COMPLETED", "FAILED"}  # else its own output says more
        record["status"] = JobStatus(
            _SLURM_ENDED.get(name, queued),
            message=f"{_SAYS} batch job {batch} is {name}" if is_told else None,
            stdout_path=record["job_stdout_path"],
            stderr_path=record["job_stderr_path"],
        )


class _PBS(_Batch, PBSProProvider):  # pyright: ignore[reportIncompatibleMethodOverride]
    pass


class _LSF(_Batch, LSFProvider):  # pyright: ignore[reportIncompatibleMethodOverride]
    pass


def _by_number(executor: _Executor) -> list[tuple[str, JobStatus]]:
    """Return the blocks in the order in which they were submitted; Parsl's differs."""
    return sorted(dict(executor.status_facade).items(), key=lambda item: int(item[0]))


def _pass_on(future: Future[Any], submitted: Future[Any]) -> None:
    """Pass on the result of a call, unless the executor as a whole has failed."""
    error = submitted.exception()
    if error is None:
        future.set_result(submitted.result())
    elif not isinstance(error, BadStateException):
        future.set_exception(error)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]
