"""Site files: the scheduler of a cluster, what to ask it for, and how nodes are used."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from biphasic.config import Config, load_config
from biphasic.errors import ConfigError

Line = Annotated[str, Field(pattern=r"^[^\r\n]+$")]
"""One line of a shell script."""
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,:@/+-]*$")]
"""A name that is written into a script without quotes."""
_WALLTIME = r"^[0-9]{1,4}:[0-5][0-9]:[0-5][0-9]$"


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
    walltime: str = Field("01:00:00", pattern=_WALLTIME)
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
    idle_minutes: float = Field(2.0, gt=0)
    """A block without jobs ends after this time."""
    heartbeat_seconds: int = Field(600, ge=10)
    """A node that is silent for this long is lost; longer than a slow first import of torch."""
    poll_seconds: float = Field(10.0, ge=1)
    """How often the scheduler is asked about blocks."""
    command_seconds: int = Field(60, ge=5)
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
        hours, minutes, seconds = map(int, self.walltime.split(":"))
        return 3600 * hours + 60 * minutes + seconds

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
        """Return how many nodes a group of processes needs.

        Raises:
            ValueError: The processes cannot be shared equally between nodes.
        """
        per_node = self.jobs_per_node or self.gpus_per_node
        nodes = -(-processes // per_node)
        if processes % nodes:
            raise ValueError(
                f"compute.processes {processes}: cannot be shared equally between nodes with "
                f"{per_node} each"
            )
        return nodes


def load_site(path: Path) -> Site:
    """Load a site file.

    Raises:
        ConfigError: It is invalid; the message names the setting. Or Parsl is not installed.
    """
    if find_spec("parsl") is None:
        raise ConfigError("clusters need Parsl; install it with: pip install 'biphasic[cluster]'")
    return load_config(Site, path)


def is_batch_id(text: str) -> bool:
    """Return whether a text can be the identifier of a batch job."""
    return re.fullmatch(r"[0-9A-Za-z][0-9A-Za-z_.\[\]-]{0,63}", text) is not None
