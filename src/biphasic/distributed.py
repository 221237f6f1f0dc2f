"""Process groups: ranks that share one computation.

Usually there is a single rank without a process group, and sums return their input.
`execution/rank_worker.py` starts several ranks and sets their environment. Each rank has a
heartbeat: the process that started them watches what they do (`execution/ranks.py`) and finds a
rank that hangs.

On one machine, no other user may join: gloo listens for its peers without a password, and torch
unpickles some of what they send. Here its ports are on loopback alone. Once all peers are
connected, a filter drops whatever else arrives at the port, and the owner of the other end of every
connection is compared with this process's (`private_connections`).
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore, Store, TCPStore

from biphasic.child import GROUP_STORE
from biphasic.errors import ConfigError, LostRankError, TrainingError

COLLECTIVE_TIMEOUT = timedelta(days=1)
"""Timeout of gloo and nccl, which name no rank. `execution/ranks.py` does, much earlier, and
gives the first rank more time for held-out losses and saving."""


class Activity(StrEnum):
    """What a rank does, beside waiting for others."""

    STARTING = "starting"
    READING = "reading its rows"
    COMPUTING = "computing"
    DEVICE = "waiting for its device"
    HELDOUT = "computing held-out losses"
    SAVING = "saving"


OWN_WORK = frozenset({Activity.READING, Activity.COMPUTING})
"""A rank's own part of a step."""


@dataclass
class Heartbeat:
    """What a rank does at the moment; one thread writes, others may read.

    Attributes:
        step: Updates that are done.
        activity: What it does, or did before it began to wait.
        waits: Whether it waits for other ranks.
        own_seconds: Time of its own work in steps so far, without waiting for others.
    """

    step: int = 0
    activity: Activity = Activity.STARTING
    waits: bool = False
    own_seconds: float = 0.0
    _since: float = field(default_factory=time.monotonic, repr=False)
    _moves: int = 0

    def at(self, activity: Activity, step: int | None = None) -> None:
        """Begin an activity, or go on with it: either shows that the rank does not hang."""
        self._count()
        self.activity = activity
        self.step = self.step if step is None else step

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Wait for other ranks in this block."""
        self._count()
        self.waits = True
        try:
            yield
        finally:
            self._count()
            self.waits = False

    def told(self) -> dict[str, Any]:
        """Return it as JSON; equal to an earlier one only if the rank has not moved since."""
        return {
            "step": self.step,
            "activity": self.activity,
            "waits": self.waits,
            "own_seconds": self.own_seconds,
            "moves": self._moves,
        }

    def _count(self) -> None:
        now = time.monotonic()
        if self.activity in OWN_WORK and not self.waits:
            self.own_seconds += now - self._since
        self._since = now
        self._moves += 1


@dataclass(frozen=True)
class ProcessGroup:
    """The ranks that train together, as one of them sees them.

    All of them call the same methods in the same order; each waits for the others. If one has
    ended, `joined_process_group` raises a `LostRankError`.

    Attributes:
        dp_rank: Which one this is, from 0.
        dp_world_size: How many there are.
        heartbeat: What this one does.
    """

    dp_rank: int = 0
    dp_world_size: int = 1
    heartbeat: Heartbeat = field(default_factory=Heartbeat, compare=False, repr=False)

    @property
    def is_alone(self) -> bool:
        """Whether this is the only process."""
        return self.dp_world_size == 1

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes files and reports progress."""
        return self.dp_rank == 0

    def share(self, num_rows: int, *, before: int = 0) -> tuple[int, int]:
        """Return the first and last index of this rank's share of rows.

        Shares are contiguous, in order of ranks, and as equal as possible. `before` counts rows
        divided by earlier calls: the next rank gets the first extra row, to keep many small
        divisions balanced.
        """
        size, shift = self.dp_world_size, before % self.dp_world_size
        return (
            (self.dp_rank * num_rows + shift) // size,
            ((self.dp_rank + 1) * num_rows + shift) // size,
        )

    def sum_(self, tensor: Tensor) -> None:
        """Replace a tensor, in place, by its sum over ranks: the same bits on each.

        On CUDA only later work in the stream waits for the sum, not the host.
        """
        if not self.is_alone:
            with self.heartbeat.waiting():
                dist.all_reduce(tensor)

    def from_first(self, value: int) -> int:
        """Return the value that the first rank gives; those of others are ignored."""
        if self.is_alone:
            return value
        given = torch.tensor([value])
        with self.heartbeat.waiting():
            dist.broadcast(given, src=0)
        return int(given)

    def any_says(self, value: bool) -> bool:
        """Return whether at least one rank gives True."""
        # On the host, whatever the device does: gloo answers without waiting for a stream.
        given = torch.tensor([int(value)])
        self.sum_(given)
        return bool(given)

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.sum_(torch.zeros(1))  # on the host: no device is asked

    def require_same(self, value: int, *, what: str) -> None:
        """Check that all ranks give the same value, of 63 bits."""
        if self.is_alone:
            return
        # One exchange gives the highest value and, negated, the lowest. They differ unless all are
        # equal.
        extremes = torch.tensor([value, -value])
        with self.heartbeat.waiting():
            dist.all_reduce(extremes, op=dist.ReduceOp.MAX)
        if int(extremes.sum()):
            raise TrainingError(
                f"{what} differ between the processes that train together; "
                "give them the same hardware and libraries, or set compute.processes to 1"
            )


ALONE = ProcessGroup()


@contextmanager
def joined_process_group() -> Iterator[ProcessGroup]:
    """Join the process group that the environment names, and leave it when the block ends well.

    Where it names none, or one rank, this process is alone. Sums of tensors on CUDA go over nccl,
    all others over gloo.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE
        return
    backend = "gloo"
    if torch.cuda.is_available():
        check_devices(int(os.environ["LOCAL_WORLD_SIZE"]))
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        backend = "cpu:gloo,cuda:nccl"
    ranks = ProcessGroup(int(os.environ["RANK"]), size)
    try:
        with ranks.heartbeat.waiting(), connecting():
            dist.init_process_group(
                backend,
                store=_store(os.environ[GROUP_STORE], size),
                rank=ranks.dp_rank,
                world_size=size,
                timeout=COLLECTIVE_TIMEOUT,
            )
        yield ranks
        # Not after an error: with a rank lost, leaving in order might take forever.
        dist.destroy_process_group()
    except RuntimeError as error:
        # gloo raises plain errors, which begin with the file of its source.
        if not isinstance(error, dist.DistError) and "gloo/transport" not in str(error):
            raise
        reason, beat = str(error).strip().partition("\n")[0], ranks.heartbeat
        where = "" if beat.activity == Activity.STARTING else f", in step {beat.step + 1}"
        raise LostRankError(
            f"rank {ranks.dp_rank}{where}: a process that trains with this one has ended: {reason}"
        ) from error


def connecting() -> AbstractContextManager[None]:
    """Return a block in which ranks make a process group."""
    is_one_machine = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
    return private_connections() if is_one_machine else nullcontext()


def served_store(host: str) -> tuple[Store, str]:
    """Return a store for the ranks of several machines, kept by this process, and its address."""
    store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
    return store, f"{host}:{store.port}"


def joined_node(store: str) -> int:
    """Return a number for this machine among those of a group, from 0."""
    return _store(store, 0).add("nodes", 1) - 1


def _store(address: str, size: int) -> Store:
    if os.path.isabs(address):  # noqa: PTH117 - an address may be of a host
        return FileStore(address, size)
    host, _, port = address.rpartition(":")
    return TCPStore(host, int(port), is_master=False, wait_for_workers=False)


def check_devices(processes: int) -> None:
    """Refuse more processes than a machine with CUDA devices has devices."""
    if torch.cuda.is_available() and (num_devices := torch.cuda.device_count()) < processes:
        raise ConfigError(
            f"processes: {processes} need a CUDA device each, but this machine has {num_devices}; "
            f"set compute.processes to {num_devices} or less"
        )


def checksum(tensors: Iterable[Tensor]) -> int:
    """Return a number of 63 bits that follows from the bits of fp32 tensors, and from no order."""
    # Sums of bits as whole numbers, which are exact in any order, unlike sums of floats.
    total = sum(int(tensor.detach().view(torch.int32).sum(dtype=torch.int64)) for tensor in tensors)
    return total % (1 << 63)


_LOOPBACK = {
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_RAS_ENABLE": "0",  # it answers anyone on port 28028
}
_ATTACH_FILTER = 26  # SO_ATTACH_FILTER, which the socket module does not have
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # "return 0 bytes", in the kernel's packet filter
_ESTABLISHED = "01"
# Readings of the kernel's table; one may miss a line while other connections come and go.
_TRIES = 5


@contextmanager
def private_connections() -> Iterator[None]:
    """Connect to processes of this user and machine in the block; Linux then closes the ports."""
    if sys.platform != "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo0"
        yield
        return
    os.environ.update(_LOOPBACK)
    before = _tcp_sockets()
    yield
    made = {inode: number for inode, number in _tcp_sockets().items() if inode not in before}
    connections = {inode for inode, number in made.items() if not _closed_port(number)}
    tries = 1
    while (strange := _strange(connections)) and tries < _TRIES:
        time.sleep(0.1)
        tries += 1
    if not strange:
        return
    raise LostRankError(
        f"{', '.join(sorted(strange))}: a process of another user, or one that has ended, has "
        "connected to this port while the processes started; nothing was trained; run again"
    )


def _tcp_sockets() -> dict[str, int]:
    """Return the descriptors of this process's TCP sockets, by inode."""
    found = {}
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed since: the folder itself, or by another thread
            link, number = str(path.readlink()), int(path.name)
            if not link.startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(number)) as one:
                if one.type == socket.SOCK_STREAM and one.family != socket.AF_UNIX:
                    found[link.removeprefix("socket:[").removesuffix("]")] = number
    return found


def _closed_port(number: int) -> bool:
    """Close the port of a socket that listens (gloo keeps the socket); return whether it does."""
    with socket.socket(fileno=os.dup(number)) as found:
        if not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return False
        program = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
        setting = struct.pack("HP", 1, ctypes.addressof(program))
        try:
            found.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, setting)
        except OSError as error:  # gVisor has no packet filter
            raise ConfigError(
                f"processes: this system cannot close their ports to other users (packet filter: "
                f"{error.strerror}); set compute.processes to 1, or train outside of this sandbox"
            ) from error
    return True


def _strange(inodes: Iterable[str]) -> set[str]:
    """Return the ports of connections whose other end is not this user's."""
    lines = list(_table())
    own = {inode: (local, remote) for local, remote, _, _, inode in lines}
    users = {line[:2]: line[3] for line in lines if line[2] == _ESTABLISHED}
    ends = {inode: own.get(inode, ("", "")) for inode in inodes}
    return {
        f"port {int(local.rpartition(':')[2] or '0', 16)}"
        for local, remote in ends.values()
        if users.get((remote, local)) != str(os.geteuid())
    }


def _table() -> Iterator[tuple[str, str, str, str, str]]:
    """Return local and remote address, state, user and inode of the machine's TCP sockets."""
    for name in ("tcp", "tcp6"):
        path = Path("/proc/self/net", name)
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            field = line.split()
            yield field[1], field[2], field[3], field[7], field[9]
