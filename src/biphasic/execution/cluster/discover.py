"""A first site file, from what Slurm says of a cluster."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass

from biphasic.config import nearest
from biphasic.errors import ConfigError

_SECONDS = 60
_FORMAT = "%P|%l|%c|%G|%D"


@dataclass(frozen=True)
class Partition:
    """A partition of nodes.

    Attributes:
        name: Its name.
        is_default: Whether jobs go there if they name none.
        limit: Time limit, as Slurm writes it.
        cores: Cores of its smallest node.
        gpus: GPUs of its smallest node.
        nodes: Number of nodes.
    """

    name: str
    is_default: bool
    limit: str
    cores: int
    gpus: int
    nodes: int


def site_text(partition: str | None) -> str:
    """Return a site file for a partition; for the default one when None.

    Raises:
        ConfigError: There is no Slurm here, or no such partition.
    """
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
partition: {chosen.name}
# account: the project to charge
{jobs}
# A block is one batch job.
nodes_per_block: 1
max_blocks: {min(chosen.nodes, 4)}
walltime: "{_walltime(chosen.limit)}"
# Modules to load and lines to run on nodes first, if this Python does not work there as it is.
modules: []
setup: []
"""


def _sinfo() -> str:
    if shutil.which("sinfo") is None:
        raise ConfigError("sinfo: not found; run this on a machine that can submit to Slurm")
    done = subprocess.run(  # noqa: S603 - no shell, nothing of the user's
        ["sinfo", "--noheader", "-o", _FORMAT],  # noqa: S607 - from PATH, as Slurm is used
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if done.returncode:
        raise ConfigError(f"sinfo: {done.stderr.strip().rpartition(chr(10))[2]}")
    return done.stdout


def _partitions(text: str) -> list[Partition]:
    """Return the partitions of `sinfo`, one for each name: it prints a line per kind of node."""
    found: dict[str, Partition] = {}
    for line in text.splitlines():
        name, limit, cores, gres, nodes = line.split("|")
        gpus = sum(
            int(count or 1) for count in re.findall(r"gpu(?::[A-Za-z][\w.-]*)?:?(\d*)", gres)
        )
        one = Partition(
            name.rstrip("*"), name.endswith("*"), limit, int(cores.rstrip("+")), gpus, int(nodes)
        )
        before = found.get(one.name, one)
        found[one.name] = Partition(
            one.name,
            one.is_default,
            limit,
            min(before.cores, one.cores),
            min(before.gpus, one.gpus),
            one.nodes if before is one else before.nodes + one.nodes,
        )
    return list(found.values())


def _walltime(limit: str) -> str:
    """Return a limit such as `2-00:00:00` or `30:00` as HH:MM:SS, and a day for no limit."""
    days, _, rest = limit.rpartition("-")
    if not re.fullmatch(r"[0-9:]+", rest):
        return "24:00:00"
    parts = [0, 0, *map(int, rest.split(":"))][-3:]
    return f"{parts[0] + 24 * int(days or 0):02d}:{parts[1]:02d}:{parts[2]:02d}"
