"""Blocks as batch jobs: how a scheduler is asked for them, about them, and to end them."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from parsl.jobs.states import TERMINAL_STATES, JobState, JobStatus
from parsl.launchers import JsrunLauncher, MpiExecLauncher, SimpleLauncher, SrunLauncher
from parsl.providers import LocalProvider, LSFProvider, PBSProProvider, SlurmProvider
from parsl.providers.errors import SubmitException
from parsl.providers.slurm.slurm import sacct_translate_table

from biphasic.execution.cluster.remote import BLOCK_END
from biphasic.execution.cluster.site import Site, is_batch_id

COMMAND_SECONDS = 60  # How long commands of the scheduler may take.
# Pause after a submission that the scheduler refused; the second in a row is twice as long.
_PAUSE_SECONDS = 30.0
# How Parsl starts itself on each node of a block.
_LAUNCHERS = {
    "slurm": partial(SrunLauncher, overrides="--cpu-bind=none"),
    "pbs": MpiExecLauncher,
    "lsf": JsrunLauncher,
}
_CANCEL = {"slurm": "scancel", "pbs": "qdel", "lsf": "bkill"}
_SLURM_QUEUE = "squeue --me --noheader --states=all --format='%i %T'"
_SLURM_ANSWER = re.compile(r"([0-9]\S* +[A-Z_]+ *\n)*")
_SLURM_QUEUED = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD"}
SAYS = "the scheduler says:"


def cancel_blocks(site: Site, batches: list[str]) -> bool:
    """Cancel batch jobs; return whether the scheduler took the request."""
    known = [batch for batch in batches if is_batch_id(batch)]
    if not known or site.scheduler == "local":
        return True
    code, _, _ = run_command(shlex.join([_CANCEL[site.scheduler], *known]), COMMAND_SECONDS)
    return code == 0


def run_command(command: str, seconds: float) -> tuple[int, str, str]:
    """Run a command of the scheduler in limited time; return its exit code and what it printed."""
    words = shlex.split(command)
    try:
        process = subprocess.Popen(  # noqa: S603 - Parsl's commands, without a shell
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
            env=_without_job(os.environ),
        )
    except OSError as error:
        return 127, "", f"{words[0]}: {error.strerror}"
    with process:
        try:
            printed, complaint = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return 124, "", f"no answer within {seconds:g} seconds"
    return process.returncode, printed, complaint


def _without_job(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what a batch job sets for its own steps."""
    # sbatch passes it on: a block that a job submits would start with that job's nodes and tasks.
    prefixes = ("SLURM_", "SBATCH_", "SRUN_", "PMI_", "PMIX_", "PMI2_")
    return {
        name: value
        for name, value in environment.items()
        if name == "SLURM_CONF" or not name.startswith(prefixes)
    }


def provider_of(site: Site, *, nodes: int, is_group: bool) -> Any:
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
        "cmd_timeout": COMMAND_SECONDS,
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
        **common, queue=site.partition, project=site.account, cores_per_node=site.cores_per_node
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
            raise RuntimeError(last_line(error.stderr or "") or error.message) from None
        self._refused = 0
        return batch


class _Local(_Polled, LocalProvider):  # pyright: ignore[reportIncompatibleMethodOverride]
    pass


class _Batch(_Polled):
    """A provider whose scheduler may be away for a while: blocks are then as they were."""

    cmd_timeout: int

    def execute_wait(self, cmd: str, timeout: int | None = None) -> tuple[int, str, str]:
        # Parsl's own raises an error after the time limit, and leaves the process behind.
        code, printed, complaint = run_command(cmd, timeout or self.cmd_timeout)
        reason = last_line(complaint) or f"exit code {code}"
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
            raise ValueError(first_line(printed))
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
        state = sacct_translate_table.get(name, JobState.RUNNING)
        if state not in TERMINAL_STATES:
            state = JobState.PENDING if name in _SLURM_QUEUED else JobState.RUNNING
        is_told = name not in {"COMPLETED", "FAILED"}  # else its own output says more
        record["status"] = JobStatus(
            state,
            message=f"{SAYS} batch job {batch} is {name}" if is_told else None,
            stdout_path=record["job_stdout_path"],
            stderr_path=record["job_stderr_path"],
        )


class _PBS(_Batch, PBSProProvider):  # pyright: ignore[reportIncompatibleMethodOverride]
    pass


class _LSF(_Batch, LSFProvider):  # pyright: ignore[reportIncompatibleMethodOverride]
    pass


def first_line(text: str) -> str:
    """Return the first line of a text."""
    return text.strip().partition("\n")[0]


def last_line(text: str) -> str:
    """Return the last line of a text."""
    return text.strip().rpartition("\n")[2]
