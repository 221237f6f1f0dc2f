"""Parsl's executors for one run of a study: their start, their blocks, their failures, their end.

Parsl's own kernel is not used: it polls from threads that wait forever for an interchange that has
died, and its tasks then never end. Here one thread calls `look`, and every question to the
interchange has a time limit.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
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

from biphasic.errors import ConfigError
from biphasic.execution.cluster.remote import BLOCK_END
from biphasic.execution.cluster.site import Site, is_batch_id
from biphasic.execution.job import ExecutorError
from biphasic.execution.nodes import Nodes

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")

SINGLE, GROUPS = "slots", "groups"
"""Labels of the executors for jobs on one slot, and for groups of processes."""
_MOST_FAILED = 3
"""Blocks in a row that may fail before the run ends."""
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


@dataclass(frozen=True)
class Block:
    """A batch job that runs our jobs.

    Attributes:
        label: Its executor.
        id: Its number in this executor.
        batch: Its identifier in the scheduler.
        is_over: Whether it has ended.
        is_queued: Whether it has not started.
    """

    label: str
    id: str
    batch: str
    is_over: bool
    is_queued: bool


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
        self._address = _reachable_address(site)
        for label, count in nodes.items():
            executor = _executor(site, label, nodes=count, address=self._address)
            executor.run_id, executor.run_dir = uuid.uuid4().hex, str(folder)
            provider = self._providers[label] = cast("Any", executor.provider)
            if hasattr(provider, "script_dir"):
                provider.script_dir = str(folder / "scripts")
                Path(provider.script_dir).mkdir(parents=True, exist_ok=True)
            provider.seconds = site.poll_seconds
            self._most[label] = provider.max_blocks
            executor.start()
            self._executors[label] = executor
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
        if not executor.bad_state_is_set:
            executor.submit(function, {}, argument).add_done_callback(partial(_pass_on, future))
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
        room = self._site.max_submissions_per_hour - len(provider.submissions)
        provider.max_blocks = min(self._most[label], active + max(room, 0))

    def blocks(self) -> list[Block]:
        """Return all blocks, as the scheduler described them last."""
        return [
            Block(
                label,
                block,
                executor.blocks_to_job_id.get(block, ""),
                is_over=status.terminal,
                is_queued=status.state == JobState.PENDING,
            )
            for label, executor in self._executors.items()
            for block, status in dict(executor.status_facade).items()
        ]

    def trouble(self, *, most: int = _MOST_FAILED) -> str:
        """Return why the latest blocks failed, if as many as `most` did so in a row."""
        for executor in self._executors.values():
            ended = [status for status in executor.status_facade.values() if status.terminal]
            latest = ended[-most:]
            if len(latest) == most and all(map(_has_failed, latest)):
                return self._reason(latest[-1])
        return ""

    def _reason(self, status: JobStatus) -> str:
        """Return why a block failed, in one line: what its script or the scheduler printed last."""
        printed = _last_line(status.stderr_summary or "")
        if status.state != JobState.MISSING:
            return printed or _first_line(status.message or "") or f"exit code {status.exit_code}"
        first, last = self._site.ports
        text = f"its nodes did not connect to {self._address}, ports {first} to {last}"
        return f"{text}; the block printed: {printed}" if printed else text

    def queue(self) -> str:
        """Describe the blocks that wait in the scheduler's queue, in one line."""
        queued = [block.batch for block in self.blocks() if block.is_queued and block.batch]
        if not queued:
            return "no batch job is in the scheduler's queue"
        text = f"batch jobs {', '.join(queued)} wait in the scheduler's queue"
        if self._site.scheduler != "slurm":
            return text
        reasons = subprocess.run(  # noqa: S603 - identifiers come from sbatch
            ["squeue", "--noheader", "--format=%r", f"--jobs={','.join(queued)}"],  # noqa: S607
            capture_output=True,
            text=True,
            timeout=self._site.command_seconds,
            check=False,
        ).stdout.split()
        return f"{text} ({', '.join(dict.fromkeys(reasons))})" if reasons else text

    def stop(self) -> None:
        """End all blocks and processes."""
        batches = [block.batch for block in self.blocks() if block.batch and not block.is_over]
        cancel_blocks(self._site, batches)
        for label, executor in self._executors.items():
            if self._site.scheduler == "local":
                self._providers[label].cancel(list(executor.job_ids_to_block))
            executor.shutdown()


def cancel_blocks(site: Site, batches: list[str]) -> None:
    """Cancel batch jobs; those that have ended already are none of our concern."""
    known = [batch for batch in batches if is_batch_id(batch)]
    command = _CANCEL.get(site.scheduler)
    if known and command:
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(  # noqa: S603 - identifiers are checked, and there is no shell
                [command, *known], capture_output=True, timeout=site.command_seconds, check=False
            )


class _Executor(HighThroughputExecutor):
    """An executor whose interchange must answer in time."""

    def scale_in(self, blocks: int, max_idletime: float | None = None) -> list[str]:
        # Asked to end no block, Parsl 2026.10 ends all that have not connected yet.
        return super().scale_in(blocks, max_idletime) if blocks else []

    def connected_managers(self) -> list[dict[str, Any]]:
        return self.command_client.run("MANAGERS", timeout_s=_ANSWER_SECONDS)

    def connected_blocks(self) -> list[str]:
        return self.command_client.run("CONNECTED_BLOCKS", timeout_s=_ANSWER_SECONDS)


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


def _reachable_address(site: Site) -> str:
    """Return the address that nodes connect to.

    Raises:
        ConfigError: None is known.
    """
    if site.address is not None or site.scheduler == "local":
        return _own_address(site.address or "127.0.0.1")
    host = socket.gethostname()
    try:
        address = socket.gethostbyname(host)
    except OSError:
        address = ""
    if not address or address.startswith("127."):
        raise ConfigError(
            f"address: the name of this machine, {host}, has no address that nodes can reach; "
            "give one in the site file"
        )
    return address


def _own_address(name: str) -> str:
    """Return the numbers of an address of this machine.

    Raises:
        ConfigError: It is not one.
    """
    try:
        address = socket.gethostbyname(name)
        with socket.socket() as trial:
            trial.bind((address, 0))
    except OSError as error:
        raise ConfigError(f"address: {name} is no address of this machine ({error})") from None
    return address


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
        return _Slurm(
            **common,
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
            f"export PATH={Path(sys.executable).parent}:$PATH",
            f"export {BLOCK_END}=$(( $(date +%s) + {site.walltime_seconds} ))",
            *(f"module load {module}" for module in site.modules),
            *site.setup,
        ]
    )


class _Polled:
    """A provider that is asked as often as the site says, and names the scheduler's own error."""

    seconds = 10.0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.submissions: deque[float] = deque()

    @property
    def status_polling_interval(self) -> float:
        return self.seconds

    def submit(self, command: str, tasks_per_node: int, job_name: str = "biphasic") -> Any:
        self.submissions.append(time.monotonic())
        try:
            return super().submit(command, tasks_per_node, job_name)  # type: ignore[misc]
        except SubmitException as error:
            raise RuntimeError(_last_line(error.stderr or "") or error.message) from None


class _Local(_Polled, LocalProvider):  # pyright: ignore[reportIncompatibleMethodOverride]
    pass


class _Slurm(_Polled, SlurmProvider):  # pyright: ignore[reportIncompatibleMethodOverride]
    pass


class _PBS(_Polled, PBSProProvider):  # pyright: ignore[reportIncompatibleMethodOverride]
    pass


class _LSF(_Polled, LSFProvider):  # pyright: ignore[reportIncompatibleMethodOverride]
    pass


def _has_failed(status: JobStatus) -> bool:
    return status.state in {JobState.FAILED, JobState.MISSING}


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
