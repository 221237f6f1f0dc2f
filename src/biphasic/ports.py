"""TCP between processes of one machine, which no other user may join.

gloo listens for its peers without a password, and torch unpickles some of what they send. Here its
ports are on loopback alone. Once all peers are connected, a filter drops whatever else arrives at
the port, and the owner of the other end of every connection is compared with this process's.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from biphasic.errors import ConfigError, LostRankError

# Environment variable: where the ranks of a group find each other. A file, if they are on one
# machine; else the address and port of a `TCPStore`. Neither unpickles anything.
STORE = "BIPHASIC_GROUP_STORE"
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
