"""Names for processes that hold on shared file systems, and whether the process named so lives.

A process id means something on one machine, in one namespace, between two boots, and only until
it is given out again. The name says all four; a process whose name cannot be judged from here
(another machine, another container) is neither alive nor dead to us.
"""

from __future__ import annotations

import os
import platform
import uuid
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path

_PROC = Path("/proc")
_MOST_PID = 1 << 31
_ENDED = frozenset("ZX")  # zombies have given up all they held; nobody may ever collect them


@dataclass(frozen=True)
class ProcessName:
    """One process among all that ever ran anywhere.

    Attributes:
        host: Name of its machine, for people.
        machine: The machine since its last boot.
        namespace: Where its number counts: containers of one machine differ.
        pid: Its number there.
        started: When it began, in clock ticks since boot; empty where systems do not say.
    """

    host: str
    machine: str
    namespace: str
    pid: int
    started: str

    def __str__(self) -> str:
        return f"host {self.host}, process {self.pid}"


def parse_process(raw: object) -> ProcessName:
    """Return the name of a process as a record of it says.

    Raises:
        ValueError: It names none.
    """
    if not isinstance(raw, dict) or raw.keys() != {field.name for field in fields(ProcessName)}:
        raise ValueError("no name of a process")
    pid = raw["pid"]
    # Signals to 0 and to negative numbers go to groups of processes.
    if type(pid) is not int or not 0 < pid < _MOST_PID:
        raise ValueError("no number of a process")
    return ProcessName(
        host=str(raw["host"]),
        machine=str(raw["machine"]),
        namespace=str(raw["namespace"]),
        pid=pid,
        started=str(raw["started"]),
    )


def this_process() -> ProcessName:
    """Return the name of the process that asks."""
    return _name_of(os.getpid())


@lru_cache(maxsize=1)
def _name_of(pid: int) -> ProcessName:
    return ProcessName(
        host=platform.node() or "unknown",
        machine=_machine(),
        namespace=_namespace(),
        pid=pid,
        started=_started(pid) or "",
    )


def is_alive(process: ProcessName) -> bool | None:
    """Tell whether a process lives; None where this cannot be known from here."""
    here = this_process()
    if (process.machine, process.namespace) != (here.machine, here.namespace):
        return None
    if os.name != "posix":  # there, asking would end the process
        return None
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's, and there
    started = _started(process.pid)
    if started is None or not process.started:
        return None  # something has that number
    return started == process.started


def _started(pid: int) -> str | None:
    """Return when a process began; empty if it has ended, None where systems do not say."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is the program's name in parentheses; it may contain both of them.
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in _ENDED else fields[19]


def _machine() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return f"node-{uuid.getnode():x}"


def _namespace() -> str:
    try:
        return str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return ""
