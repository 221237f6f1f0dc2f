"""The ranks of one machine: `python -m biphasic.execution.node STORE NODES PROCESSES RANK...`.

Starts Python with `RANK...` for each rank, which find each other in `STORE`, and ends when all have
ended. If one fails, or on SIGTERM, all are asked to end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

from biphasic.ports import STORE

_POLL_SECONDS = 0.1
_END_SECONDS = 30.0


def command(store: str, nodes: int, processes: int, rank: list[str]) -> list[str]:
    """Return the command that starts the ranks of a machine."""
    return [sys.executable, "-m", __name__, store, str(nodes), str(processes), *rank]


def run() -> None:
    """Run the ranks of this machine; exit with code 1 if one of them failed."""
    store, nodes, processes, *rank = sys.argv[1:]
    is_over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_over.set())
    node = 0
    if int(nodes) > 1:
        from biphasic.distributed import joined_node  # noqa: PLC0415 - torch, on several nodes only

        node = joined_node(store)
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for local in range(int(processes)):
            names = {STORE: store, **_names(local, node, int(nodes), int(processes))}
            command = [sys.executable, *rank]
            ranks.append(subprocess.Popen(command, env={**os.environ, **names}))  # noqa: S603
        # Until all have ended, or one has failed, or SIGTERM.
        while None in (codes := [rank.poll() for rank in ranks]):
            if any(codes) or is_over.wait(_POLL_SECONDS):
                break
    finally:
        _end(ranks)
    sys.exit(any(rank.returncode for rank in ranks))


def _names(local: int, node: int, nodes: int, processes: int) -> dict[str, str]:
    """Return a rank's place in the group, in the variables that torch uses."""
    return {
        "RANK": str(node * processes + local),
        "WORLD_SIZE": str(nodes * processes),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(processes),
    }


def _end(ranks: list[subprocess.Popen[bytes]]) -> None:
    """Ask ranks to end, and kill those that do not."""
    for rank in ranks:
        rank.terminate()
    end = time.monotonic() + _END_SECONDS
    for rank in ranks:
        try:
            rank.wait(max(end - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()


if __name__ == "__main__":
    run()
