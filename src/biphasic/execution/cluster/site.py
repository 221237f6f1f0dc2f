"""Site files: the scheduler of a cluster, what to ask it for, how nodes are used; a first one."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from biphasic.config import DURATION, Config, duration_seconds, load_config, load_settings, nearest
from biphasic.errors import ConfigError, install_command

Line = Annotated[str, Field(pattern=r"^[^\r\n]+$")]  # one line of a shell script
# A name that is written into a script without quotes.
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,:@/+-]*$")]
# Paths that Parsl can write into shell lines: it does not quote them.
_SAFE_PATH = re.compile(r"[\w./+@%:,=-]+")
_SINFO_SECONDS = 60
_SINFO_FORMAT = "%P|%l|%c|%G|%D"
_MOST_SECONDS = 7 * 24 * 3600
_DRAIN_SECONDS = 300
# Directives that set the time limit of a block.
_TIME_LIMITS = {"slurm": r"\s(--time\b|-t)", "pbs": r"walltime=", "lsf": r"\s-W"}
_SUBMIT = {"slurm": "sbatch", "pbs": "qsub", "lsf": "bsub"}


class Site(Config):
    """How to get nodes from a cluster's scheduler, and how many jobs share one."""

    executor: Literal["cluster"] = "cluster"
    scheduler: Literal["slurm", "pbs", "lsf", "local"]
    """The scheduler; `local` starts blocks as processes on this machine."""
    partition: Word | None = None
    """Partition (Slurm) or queue (PBS, LSF); the scheduler's default when omitted."""
    account: Word | None = None
    """Account or project that is charged."""
    max_blocks: int = Field(1, ge=1, le=1000)
    """Most blocks at once; those for trainings with several processes are counted apart. A block is
    one batch job, which runs many of ours."""
    nodes_per_block: int = Field(1, ge=1, le=1000)
    """Nodes of a block."""
    walltime: str = Field("01:00:00", pattern=DURATION)
    """Time limit of a block, HH:MM:SS. Five minutes before it, or after three quarters of a short
    one, jobs save their progress and go on in another block."""
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
    poll_seconds: float = Field(10.0, ge=1, le=3600)
    """How often the scheduler is asked about blocks."""

    @model_validator(mode="after")
    def _check(self) -> Site:
        if (self.gpus_per_node > 0) == (self.jobs_per_node is not None):
            raise ValueError("give either gpus_per_node or jobs_per_node")
        if self.scheduler == "local" and self.nodes_per_block > 1:
            raise ValueError("nodes_per_block: this machine is one node")
        if not self.walltime_seconds:  # for Slurm no limit, but jobs would stop at once
            raise ValueError(f"walltime: {self.walltime} is no time; give HH:MM:SS above zero")
        limit = _TIME_LIMITS.get(self.scheduler)
        for line in self.directives:
            if limit and re.search(limit, line):
                raise ValueError(f"directives: '{line}' sets a time limit; set walltime instead")
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
        return min(_DRAIN_SECONDS, self.walltime_seconds // 4)

    @property
    def slots_per_node(self) -> int:
        """Return how many jobs run on a node at once."""
        return self.jobs_per_node or self.gpus_per_node * self.jobs_per_gpu

    @property
    def num_slots(self) -> int:
        """Return how many jobs run at once when all blocks run."""
        return self.max_blocks * self.nodes_per_block * self.slots_per_node


def load_site(path: Path) -> Site:
    """Load a site file."""
    if find_spec("parsl") is None:
        raise ConfigError(f"clusters need Parsl; install it with: {install_command('cluster')}")
    named = load_settings(path).get("executor", "cluster")
    if named != "cluster":
        raise ConfigError(
            f"{path}: its executor is {named}, not a cluster; check a class of your own with "
            "'biphasic plugin check'"
        )
    return load_config(Site, path)


def group_nodes(site: Site, processes: int) -> int:
    """Return the nodes of a group of processes; 0 for a single process."""
    if processes == 1:
        return 0
    per_node = site.jobs_per_node or site.gpus_per_node
    nodes = -(-processes // per_node)
    if processes % nodes:
        raise ConfigError(
            f"compute.processes {processes}: cannot be shared equally between nodes with "
            f"{per_node} each"
        )
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
        raise ConfigError(f"address: {name} is not an address of this machine ({error})") from None
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


@dataclass(frozen=True)
class _Partition:
    """A partition of nodes."""

    name: str
    is_default: bool  # jobs go there if they name none
    limit: str  # time limit, as Slurm writes it
    cores: int  # cores of its smallest node
    gpus: int  # GPUs of its smallest node
    nodes: int  # how many there are


def site_text(partition: str | None) -> str:
    """Return a site file for a partition; for the default one when None."""
    found = _partitions(_sinfo())
    if not found:
        raise ConfigError("sinfo lists no partition")
    names = [one.name for one in found]
    if partition is None:
        chosen = next((one for one in found if one.is_default), found[0])
    elif partition in names:
        chosen = found[names.index(partition)]
    else:
        raise ConfigError(f"--partition {partition}: not a partition{nearest(partition, names)}")
    jobs = (
        f"gpus_per_node: {chosen.gpus}\njobs_per_gpu: 1"
        if chosen.gpus
        else f"jobs_per_node: {chosen.cores}\npin_cores: true"
    )
    return f"""\
# Partition {chosen.name}: {chosen.nodes} nodes, time limit {chosen.limit}. Other partitions: \
{", ".join(name for name in names if name != chosen.name) or "none"}.
scheduler: slurm
partition: {json.dumps(chosen.name)}
# account: the project to charge
{jobs}
# A block is one batch job.
nodes_per_block: 1
max_blocks: {min(max(chosen.nodes, 1), 4)}
walltime: "{_walltime(chosen.limit)}"
# Modules to load and lines to run on nodes first, if this Python does not work there as it is.
modules: []
setup: []
"""


def _sinfo() -> str:
    if shutil.which("sinfo") is None:
        raise ConfigError("sinfo: not found; run this on a machine that can submit to Slurm")
    try:
        done = subprocess.run(  # noqa: S603 - no shell, nothing of the user's
            ["sinfo", "--noheader", "-o", _SINFO_FORMAT],  # noqa: S607 - from PATH, as Slurm is used
            capture_output=True,
            text=True,
            timeout=_SINFO_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"sinfo: no answer within {_SINFO_SECONDS} seconds; try again") from None
    if done.returncode:
        raise ConfigError(f"sinfo: {done.stderr.strip().rpartition(chr(10))[2]}")
    return done.stdout


def _partitions(text: str) -> list[_Partition]:
    """Return the partitions of `sinfo`, one for each name: it prints a line per kind of node."""
    kinds: dict[str, list[_Partition]] = {}
    for line in text.splitlines():
        try:
            name, limit, cores, resources, nodes = line.split("|")
            # Such as `gpu:a100:4(S:0-1),shard:8`.
            kinds_of_node = [each.partition("(")[0].split(":") for each in resources.split(",")]
            gpus = [int(k[-1]) if k[-1].isdigit() else 1 for k in kinds_of_node if k[0] == "gpu"]
            one = _Partition(
                name.rstrip("*"),
                name.endswith("*"),
                limit,
                int(cores.rstrip("+")),
                sum(gpus),
                int(nodes),
            )
        except ValueError:
            raise ConfigError(f"sinfo: unreadable line: {line}") from None
        kinds.setdefault(one.name, []).append(one)
    return [
        replace(
            of_name[-1],
            cores=min(one.cores for one in of_name),
            gpus=min(one.gpus for one in of_name),
            nodes=sum(one.nodes for one in of_name),
        )
        for of_name in kinds.values()
    ]


def _walltime(limit: str) -> str:
    """Return a limit such as `2-00:00:00` as HH:MM:SS; without one, a day."""
    days, _, rest = limit.rpartition("-")
    if not re.fullmatch(r"[0-9:]+", rest):
        return "24:00:00"
    parts = [0, 0, *map(int, rest.split(":"))][-3:]
    seconds = (24 * int(days or 0) + parts[0]) * 3600 + parts[1] * 60 + parts[2]
    minutes, seconds = divmod(min(seconds, _MOST_SECONDS), 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}"
