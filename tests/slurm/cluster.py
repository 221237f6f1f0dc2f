"""A real Slurm cluster of two nodes on this machine, for tests.

The daemons come from Debian's packages, which are unpacked into a cache and never installed. They
run as the current user, listen on 127.0.0.1 alone, and keep all their files in one folder.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

# apt adds the libraries that these need and this machine lacks. It would not download the plugins
# where Slurm is installed.
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge")
CONFIG = """
ClusterName=biphasic
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
# A requeued job waits until its last credential expires: 120 seconds, unless set.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
PluginDir={plugins}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1
JobRequeue=1
ReturnToService=2
KillWait=10
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=8000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=8000
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE
PartitionName=short Nodes=n1,n2 MaxTime=1
"""


class SlurmUnavailableError(Exception):
    """This machine cannot get Slurm; the message is the reason to skip."""


class SlurmCluster:
    """Two nodes, from `with SlurmCluster() as slurm:` on; its end kills jobs and daemons.

    It also kills all other processes that were started with its `SLURM_CONF`.

    Attributes:
        partition: The default partition: no time limit.
        short_partition: The same nodes; a job may run for one minute.
        nodes: Names of the nodes. Each has 4 CPUs and 8000 MB for Slurm to allocate.
        folder: Configuration, logs (`slurmctld.log`, `n1.log`, ...) and state.
        environment: Variables that Slurm's commands need, to add to those of a process.
    """

    partition = "main"
    short_partition = "short"
    nodes = ("n1", "n2")

    def __init__(self) -> None:
        """Get Slurm's packages, unless the cache has them.

        Raises:
            SlurmUnavailableError: This machine cannot get them.
        """
        self._packages = _unpacked_packages()
        plugins = next(self._packages.glob("usr/lib/*/slurm-wlm"))
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        libraries = [str(plugins.parent), str(plugins), os.environ.get("LD_LIBRARY_PATH")]
        self.environment = {
            "PATH": f"{self._packages}/usr/bin:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": ":".join(filter(None, libraries)),
            "SLURM_CONF": f"{self.folder}/slurm.conf",
        }
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        (self.folder / "slurm.conf").write_text(
            CONFIG.format(
                host=socket.gethostname().partition(".")[0],
                user=pwd.getpwuid(os.getuid()).pw_name,
                folder=self.folder,
                plugins=plugins,
                ports=_free_ports(3),
            )
        )

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def run(self, *command: str | Path) -> str:
        """Run a command, such as `squeue`, with the cluster's environment; return its output.

        Raises:
            RuntimeError: The command failed; the message has its error output.
        """
        done = subprocess.run(
            list(map(str, command)),
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} exits with {done.returncode}: {done.stderr.strip()}")
        return done.stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """Return the fields of `scontrol show job`, such as `JobState`, `Reason`, `Restarts`."""
        fields = self.run("scontrol", "--oneliner", "show", "job", number).split(" ")
        return dict(field.split("=", 1) for field in fields if "=" in field)

    def wait(self, event: str, happens: Callable[[], object], *, seconds: float = 300.0) -> None:
        """Wait until `happens()` is true.

        Args:
            event: What that means, for the error.

        Raises:
            AssertionError: It never was, or a daemon ended; the message has the daemons' logs.
        """
        end = time.monotonic() + seconds
        while not happens():
            ended = [name for name, daemon in self._daemons.items() if daemon.poll() is not None]
            if ended or time.monotonic() > end:
                cause = f"{', '.join(ended)} ended" if ended else f"waited {seconds:g} seconds"
                raise AssertionError(f"not {event}: {cause}\n{self._logs()}")
            time.sleep(0.1)

    def cancel_jobs(self) -> None:
        """Cancel all jobs; wait until both nodes are idle, 10 seconds if jobs ignore SIGTERM."""
        self.run("scancel", "--partition", self.partition)
        self.run("scancel", "--partition", self.short_partition)
        self.wait("idle nodes", self._nodes_are_idle)

    def _start(self) -> None:
        self.folder.chmod(0o711)  # munged insists that all users can reach its socket
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        munge = self.folder / "munge.socket"
        files = [f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "pid", "seed")]
        self._start_daemon("munged", "munged", "--foreground", f"--socket={munge}", *files)
        self.wait("a socket of munged", munge.exists)
        self._start_daemon("slurmctld", "slurmctld-wlm", "-D")
        stepd = f"{self._packages}/usr/sbin/slurmstepd-wlm"
        for node in self.nodes:
            self._start_daemon(node, "slurmd-wlm", "-D", "-N", node, "-d", stepd)
        self.wait("idle nodes", self._nodes_are_idle)

    def _start_daemon(self, name: str, program: str, *arguments: str) -> None:
        # A daemon ends with the thread that starts it, even if kill -9 ends that.
        command = ["setpriv", "--pdeathsig=KILL", f"{self._packages}/usr/sbin/{program}"]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                [*command, *arguments],
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _nodes_are_idle(self) -> bool:
        try:
            self.run("scontrol", "ping")
        except RuntimeError:
            return False
        states = self.run("sinfo", "--noheader", "--Node", "-p", self.partition, "-o", "%T")
        return states.split() == ["idle"] * len(self.nodes)

    def _logs(self) -> str:
        return "".join(f"{log}:\n{log.read_text()[-2000:]}" for log in self.folder.glob("*.log"))

    def _stop(self) -> None:
        """Kill every process that has this cluster's `SLURM_CONF`; delete the folder."""
        while marked := _processes_with(f"SLURM_CONF={self.environment['SLURM_CONF']}"):
            for process in marked:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            for daemon in self._daemons.values():
                daemon.wait()
        shutil.rmtree(self.folder)


def _processes_with(variable: str) -> list[int]:
    """Return the living processes that started with `NAME=value` in their environment."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        # Of a process that ends, or is another user's.
        with suppress(OSError):
            if variable.encode() in file.read_bytes().split(b"\0"):
                found.append(int(file.parent.name))
    return found


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _unpacked_packages() -> Path:
    """Return the folder in which Slurm's packages are unpacked; download them the first time."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    unpacked = Path(home) / "biphasic-slurm"
    if unpacked.exists():
        return unpacked
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise SlurmUnavailableError(
                f"Slurm comes from Debian's packages, and this machine has no {program}"
            )
    unpacked.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".slurm-", dir=unpacked.parent) as temporary:
        archives, partial = Path(temporary, "archives"), Path(temporary, "unpacked")
        (archives / "partial").mkdir(parents=True)
        command = ["apt-get", "install", "--download-only", "--reinstall", "--yes"]
        command += ["--no-install-recommends", *PACKAGES]
        for option in (f"Dir::Cache={temporary}", "Debug::NoLocking=true", "Acquire::Retries=2"):
            command += ["--option", option]
        download = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if download.returncode:
            lines = download.stderr.splitlines()
            errors = [line for line in lines if line.startswith("E:")] or lines
            raise SlurmUnavailableError(
                f"apt-get cannot download Slurm (try apt-get update): {errors[0]}"
            )
        for archive in archives.glob("*.deb"):
            extract = ["dpkg-deb", "--extract", archive, partial]
            subprocess.run(extract, check=True)
        try:
            partial.rename(unpacked)
        except OSError:
            if not unpacked.exists():  # else another process was faster
                raise
    return unpacked
