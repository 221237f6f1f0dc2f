"""A first site file, from what Slurm says of a cluster."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass, replace

from biphasic.config import nearest
from biphasic.errors import ConfigError

_SECONDS = 60
_FORMAT = "%P|%l|%c|%G|%D"
_MOST_SECONDS = 7 * 24 * 3600
_SHORT_MINUTES = 20  # blocks shorter than this cannot drain for as long as others do


@dataclass(frozen=True)
class Partition:
    """A partition of nodes."""

    name: str
    is_default: bool  # jobs go there if they name none
    limit: str  # time limit, as Slurm writes it
    cores: int  # cores of its smallest node
    gpus: int  # GPUs of its smallest node
    nodes: int  # number of nodes


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
    walltime, minutes = _walltime(chosen.limit)
    drain = f"\ndrain_minutes: {minutes / 4:g}" if minutes < _SHORT_MINUTES else ""
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
walltime: "{walltime}"{drain}
# Modules to load and lines to run on nodes first, if this Python does not work there as it is.
modules: []
setup: []
"""


def _sinfo() -> str:
    if shutil.which("sinfo") is None:
        raise ConfigError("sinfo: not found; run this on a machine that can submit to Slurm")
    try:
        done = subprocess.run(  # noqa: S603 - no shell, nothing of the user's
            ["sinfo", "--noheader", "-o", _FORMAT],  # noqa: S607 - from PATH, as Slurm is used
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"sinfo: no answer within {_SECONDS} seconds; try again") from None
    if done.returncode:
        raise ConfigError(f"sinfo: {done.stderr.strip().rpartition(chr(10))[2]}")
    return done.stdout


def _partitions(text: str) -> list[Partition]:
    """Return the partitions of `sinfo`, one for each name: it prints a line per kind of node."""
    kinds: dict[str, list[Partition]] = {}
    for line in text.splitlines():
        try:
            name, limit, cores, gres, nodes = line.split("|")
            one = Partition(
                name.rstrip("*"),
                name.endswith("*"),
                limit,
                int(cores.rstrip("+")),
                _gpus(gres),
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


def _gpus(resources: str) -> int:
    """Return the GPUs in a node's resources, such as `gpu:a100:4(S:0-1),shard:8`."""
    kinds = [one.partition("(")[0].split(":") for one in resources.split(",")]
    return sum(int(kind[-1]) if kind[-1].isdigit() else 1 for kind in kinds if kind[0] == "gpu")


def _walltime(limit: str) -> tuple[str, float]:
    """Return a limit such as `2-00:00:00` as HH:MM:SS and minutes; at most a week, else a day."""
    days, _, rest = limit.rpartition("-")
    if not re.fullmatch(r"[0-9:]+", rest):
        return "24:00:00", 24 * 60
    parts = [0, 0, *map(int, rest.split(":"))][-3:]
    seconds = (24 * int(days or 0) + parts[0]) * 3600 + parts[1] * 60 + parts[2]
    minutes, seconds = divmod(min(seconds, _MOST_SECONDS), 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}", minutes + seconds / 60
