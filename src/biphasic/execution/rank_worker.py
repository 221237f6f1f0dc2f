"""The ranks of one machine, and one of them, which trains the job in a file.

`python -m biphasic.execution.rank_worker STORE NODES PROCESSES RANK...` starts `python RANK...` for
each rank, which find each other in `STORE`, and ends when all have ended. If one fails, or on
SIGTERM, all are asked to end.

A rank writes JSON objects to its original standard output: progress, heartbeats, its failure. On
SIGTERM, and when standard input closes after a stop request, it saves its progress within seconds.
When that closes without a request, the parent has died or a rank hangs, and it exits immediately.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biphasic.child import GROUP_STORE, PYTHON
from biphasic.errors import StoppedError
from biphasic.execution.job import Report, ShouldStop, described, throttled
from biphasic.execution.worker import TERMINATING, exit_later, prepare_torch, send

if TYPE_CHECKING:
    from biphasic.distributed import ProcessGroup

# File next to the job's file that marks a stop request before standard input closes.
STOP_FILE = "stop"
_BEATS_PER_SECOND = 8  # of all ranks together; at most one a second from each
# Trains a job, given as JSON, as one rank of a process group.
Train = Callable[[str, Report, ShouldStop, "ProcessGroup"], None]


def serve(train: Train) -> None:
    """Train the job in the file named by the first argument, and exit the process."""
    events = os.dup(1)
    os.dup2(2, 1)
    file, is_over = Path(sys.argv[1]), threading.Event()
    for number in TERMINATING:  # sent to every process of a job
        signal.signal(number, lambda *_: _stop_in_time(is_over))
    threading.Thread(target=_watch_input, args=(file, is_over), daemon=True).start()
    code = 0
    try:
        _join_and_train(train, file, events, is_over)
    except Exception as error:  # noqa: BLE001 - reported to the parent and logged
        failure = described(error)
        if not failure["kind"]:
            traceback.print_exc()
        send(events, event="failed", rank=int(os.environ.get("RANK", "0")), **failure)
        code = 0 if isinstance(error, StoppedError) else 1  # all ranks stop at once
    sys.stderr.flush()
    # Skip the normal exit: after a lost rank, the others would wait for it in their exit handlers.
    os._exit(code)


def _watch_input(file: Path, is_over: threading.Event) -> None:
    sys.stdin.buffer.read()
    if (file.parent / STOP_FILE).exists():
        _stop_in_time(is_over)
    else:
        os._exit(1)


def _stop_in_time(is_over: threading.Event) -> None:
    """Ask the training to stop; exit the process if it has not stopped after a few seconds."""
    is_over.set()
    exit_later(1)


def _join_and_train(train: Train, file: Path, events: int, is_over: threading.Event) -> None:
    prepare_torch(int(os.environ.get("OMP_NUM_THREADS", "1")))
    from biphasic.distributed import joined_process_group  # noqa: PLC0415

    report = throttled(lambda progress: send(events, event="progress", **vars(progress)))
    with joined_process_group() as ranks:
        threading.Thread(target=_beat, args=(events, ranks), daemon=True).start()
        train(file.read_text(encoding="utf-8"), report, is_over.is_set, ranks)
        if ranks.is_first:
            send(events, event="finished")


def _beat(events: int, ranks: ProcessGroup) -> None:
    """Write the rank's heartbeat whenever it has moved."""
    interval = max(1.0, ranks.dp_world_size / _BEATS_PER_SECOND)
    last: dict[str, Any] = {}
    while True:
        if (told := ranks.heartbeat.told()) != last:
            last = told
            send(events, event="heartbeat", rank=ranks.dp_rank, **told)
        time.sleep(interval)


_POLL_SECONDS = 0.1
_END_SECONDS = 30.0


def command(store: str, nodes: int, processes: int, rank: list[str]) -> list[str]:
    """Return the command that starts the ranks of a machine."""
    return [*PYTHON, "-m", __name__, store, str(nodes), str(processes), *rank]


def run() -> None:
    """Run the ranks of this machine; exit with code 1 if one of them failed."""
    store, nodes, processes, *rank = sys.argv[1:]
    is_over = threading.Event()
    for number in TERMINATING:
        signal.signal(number, lambda *_: is_over.set())
    node = 0
    if int(nodes) > 1:
        from biphasic.distributed import joined_node  # noqa: PLC0415 - torch, on several nodes only

        node = joined_node(store)
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for local in range(int(processes)):
            names = {GROUP_STORE: store, **_names(local, node, int(nodes), int(processes))}
            command = [*PYTHON, *rank]
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
