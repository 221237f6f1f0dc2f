"""Site files: the scheduler of a cluster, what to ask it for, and how nodes are used."""

from __future__ import annotations

import re
import shutil
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from biphasic.config import DURATION, Config, duration_seconds, load_config
from biphasic.errors import ConfigError
from biphasic.extras import install_command

Line = Annotated[str, Field(pattern=r"^[^\r\n]+$")]  # one line of a shell script
# A name that is written into a script without quotes.
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,:@/+-]*$")]
# Paths that Parsl can write into shell lines: it does not quote them.
_SAFE_PATH = re.compile(r"[\w./+@%:,=-]+")
_SUBMIT = {"slurm": "sbatch", "pbs": "qsub", "lsf": "bsub"}


class Site(Config):
    """How to get nodes from a cluster's scheduler, and how many jobs share one."""

    scheduler: Literal["slurm", "pbs", "lsf", "local"]
    """The scheduler; `local` starts blocks as processes on this machine."""
    partition: Word | None = None
    """Partition (Slurm) or queue (PBS, LSF); the scheduler's default when omitted."""
    account: Word | None = None
    """Account or project that is charged."""
    max_blocks: int = Field(1, ge=1, le=1000)
    """Most blocks at once. A block is one batch job, which runs many of ours."""
    nodes_per_block: int = Field(1, ge=1, le=1000)
    """Nodes of a block."""
    walltime: str = Field("01:00:00", pattern=DURATION)
    """Time limit of a block, HH:MM:SS. Jobs that are not finished by then go on in another one."""
    drain_minutes: float = Field(5.0, gt=0, le=120)
    """Before its time limit, a block takes no more jobs, and those that run save their progress."""
    gpus_per_node: int = Field(0, ge=0, le=64)
    """GPUs of a node; 0 for nodes without."""
    jobs_per_gpu: int = Field(1, ge=1, le=64)
    """Jobs that share a GPU; they must fit into its memory."""
    jobs_per_node: int | None = Field(None, ge=1, le=1024)
    """Jobs at once on a node without GPUs."""
    cores_per_node: int | None = Field(None, ge=1, le=4096)
    """Cores to ask for on each node; omitted: what the scheduler gives."""
    threads: int = Field(1, ge=1, le=1024)
    """Compute threads of a job; may change the last bits of results."""
    pin_cores: bool = False
    """Bind each job to cores of its own."""
    exclusive: bool = True
    """Share nodes with no other batch job (Slurm)."""
    modules: tuple[Word, ...] = ()
    """Environment modules to load on the nodes."""
    setup: tuple[Line, ...] = ()
    """Shell lines to run on the nodes first, such as `source env/bin/activate`."""
    directives: tuple[Line, ...] = ()
    """Further lines for the head of batch scripts, such as `#SBATCH --mem=0`."""
    address: Word | None = None
    """Address of this machine that nodes can reach; that of its host name when omitted."""
    ports: tuple[int, int] = (54000, 55000)
    """Range of ports on this machine that nodes can reach; one is used."""
    idle_minutes: float = Field(2.0, gt=0, le=10_080)
    """A block without jobs ends after this time."""
    heartbeat_seconds: int = Field(600, ge=10, le=86_400)
    """A node that is silent for this long is lost; longer than a slow first import of torch."""
    poll_seconds: float = Field(10.0, ge=1, le=3600)
    """How often the scheduler is asked about blocks."""
    command_seconds: int = Field(60, ge=5, le=3600)
    """How long commands of the scheduler may take."""
    max_submissions_per_hour: int = Field(30, ge=1)
    """Most blocks submitted in an hour, against floods of jobs when blocks fail at once."""

    @model_validator(mode="after")
    def _check(self) -> Site:
        if (self.gpus_per_node > 0) == (self.jobs_per_node is not None):
            raise ValueError("give either gpus_per_node or jobs_per_node")
        if self.drain_minutes * 60 > self.walltime_seconds / 2:
            raise ValueError("drain_minutes: more than half of walltime")
        if self.scheduler == "local" and self.nodes_per_block > 1:
            raise ValueError("nodes_per_block: this machine is one node")
        low, high = self.ports
        if not 1024 <= low < high <= 65535:
            raise ValueError("ports: give two rising numbers from 1024 to 65535")
        return self

    @property
    def walltime_seconds(self) -> int:
        """Return the time limit of a block in seconds."""
        return duration_seconds(self.walltime)

    @property
    def drain_seconds(self) -> int:
        """Return the seconds before its time limit in which a block takes no more jobs."""
        return round(60 * self.drain_minutes)

    @property
    def slots_per_node(self) -> int:
        """Return how many jobs run on a node at once."""
        return self.jobs_per_node or self.gpus_per_node * self.jobs_per_gpu

    @property
    def num_slots(self) -> int:
        """Return how many jobs run at once when all blocks run."""
        return self.max_blocks * self.nodes_per_block * self.slots_per_node

    def nodes_for(self, processes: int) -> int:
        """Return how many nodes a group of processes needs."""
        per_node = self.jobs_per_node or self.gpus_per_node
        nodes = -(-processes // per_node)
        if processes % nodes:
            raise ConfigError(
                f"compute.processes {processes}: cannot be shared equally between nodes with "
                f"{per_node} each"
            )
        return nodes


def load_site(path: Path) -> Site:
    """Load a site file."""
    if find_spec("parsl") is None:
        raise ConfigError(f"clusters need Parsl; install it with: {install_command('cluster')}")
    return load_config(Site, path)


def group_nodes(site: Site, processes: int) -> int:
    """Return the nodes of a group of processes; 0 for a single process."""
    if processes == 1:
        return 0
    nodes = site.nodes_for(processes)
    if nodes > site.max_blocks * site.nodes_per_block:
        raise ConfigError(
            f"compute.processes {processes}: needs {nodes} nodes, and the site file allows "
            f"{site.max_blocks * site.nodes_per_block}; increase max_blocks"
        )
    if nodes > 1 and site.scheduler == "local":
        raise ConfigError(f"compute.processes {processes}: this machine is one node")
    return nodes


def reachable_address(site: Site) -> str:
    """Return the address that nodes connect to."""
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
    """Return the numbers of an address of this machine."""
    try:
        address = socket.gethostbyname(name)
        with socket.socket() as trial:
            trial.bind((address, 0))
    except OSError as error:
        raise ConfigError(f"address: {name} is no address of this machine ({error})") from None
    return address


def check_fits(site: Site, folder: Path, processes: int = 1) -> None:
    """Check what can be known of a site before work starts; `processes` are those of a job."""
    group_nodes(site, processes)
    reachable_address(site)
    submit = _SUBMIT.get(site.scheduler)
    if submit is not None and shutil.which(submit) is None:
        raise ConfigError(f"{submit}: not found; run this on a machine that can submit batch jobs")
    if not _SAFE_PATH.fullmatch(str(folder)):
        raise ConfigError(
            f"{folder}: on clusters, a path may have letters, digits and ./+@%:,=-_ alone; "
            "choose another --root"
        )


def is_batch_id(text: str) -> bool:
    """Return whether a text can be the identifier of a batch job."""
    return re.fullmatch(r"[0-9A-Za-z][0-9A-Za-z_.\[\]-]{0,63}", text) is not None
