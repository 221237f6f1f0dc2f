"""Another user of the machine, as whom a test of root acts."""

from __future__ import annotations

import encodings.idna  # noqa: F401 - sockets need it, and another user may not read its file
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

OTHER = 65534
needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can act as another user"
)


@contextmanager
def as_other_user(
    act: Callable[[], Any], *, stays: bool = False, user: int = OTHER, group: int = OTHER
) -> Iterator[None]:
    """Act in a forked process of another user; raise if it fails. It ends first, or `stays`."""
    reading, tell = os.pipe()
    wait, release = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(release)
            os.setgroups([])
            os.setgid(group)
            os.setuid(user)
            kept = act()
            os.write(tell, b"+")
            if stays:
                os.read(wait, 1)
            del kept
        except BaseException as error:  # noqa: BLE001 - the parent reports it
            os.write(tell, repr(error).encode())
        finally:
            sys.stderr.flush()
            os._exit(0)
    os.close(tell)
    os.close(wait)
    try:
        answer = os.read(reading, 10_000).decode()
        assert answer == "+", answer
        yield
    finally:
        os.close(release)
        os.close(reading)
        os.waitpid(child, 0)


def can_connect(address: tuple[str, int]) -> bool:
    """Tell whether a connection is made within a second: the kernel makes one at once."""
    try:
        with socket.create_connection(address, timeout=1):
            return True
    except OSError:
        return False
