"""Process groups: train one segment with several processes, here or on the nodes of a block.

The parent holds the job's lock and the other end of the ranks' standard input. When that closes,
ranks exit immediately, because the lock may be lost; after a stop request they save their progress
first.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any, Protocol

from biphasic import errors
from biphasic.child import messages
from biphasic.distributed import check_devices, served_store
from biphasic.errors import BiphasicError, ConfigError, LostRankError
from biphasic.execution import node
from biphasic.execution.heartbeats import Heartbeats
from biphasic.execution.job import Progress, Report, ShouldStop, never
from biphasic.execution.rank_worker import STOP_FILE
from biphasic.execution.slots import Nodes
from biphasic.model.compute.device import chosen_device, device_environment
from biphasic.training.compute import ComputeConfig
from biphasic.training.recipe import Recipe

_POLL_SECONDS = 0.2
_END_SECONDS = 60.0  # `node.py` gives ranks 30 s to end before it kills them


class SegmentJob(Protocol):
    """The parts of a `TrainJob` used here."""

    recipe: Recipe
    compute: ComputeConfig

    def model_dump_json(self) -> str:
        """Return the job as JSON."""
        ...


def run_ranks(
    job: SegmentJob, report: Report, *, worker: str, should_stop: ShouldStop = never
) -> None:
    """Train a segment in `compute.processes` processes, and wait for them."""
    # Each uses `OMP_NUM_THREADS` threads; if it is unset they share the cores. Output of libraries
    # goes to standard error; on a terminal, only after an unexpected failure.
    # The caller holds the job's lock. `worker` is a module that calls
    # `biphasic.execution.rank_worker.serve` when it is run. `should_stop` is polled several times a
    # second; when it returns True, ranks save their progress and exit.
    processes, nodes = job.compute.processes, Nodes.from_environment()
    job.compute.check_rows(job.recipe.placed_phases)
    per_node = processes // nodes.count
    chosen = chosen_device()
    if chosen is not None and chosen.index is not None:
        raise ConfigError(
            f"device: {chosen} is one device, and {per_node} processes need one each; use cuda"
        )
    if chosen is None or chosen.type == "cuda":
        check_devices(per_node)
    heartbeats = Heartbeats(processes)
    with tempfile.TemporaryDirectory(prefix="biphasic-ranks-", dir=nodes.folder) as folder:
        file = Path(folder) / "job.json"
        file.write_text(job.model_dump_json(), encoding="utf-8")
        rank = ["-m", worker, str(file)]
        with _store(nodes, Path(folder)) as store, _quiet_on_terminals() as log:
            command = [*nodes.launch, *node.command(store, nodes.count, per_node, rank)]
            with _started(command, file, per_node, log) as ranks:
                failures, is_finished = _attend(ranks, file, report, should_stop, heartbeats)
                if ranks.wait() or not is_finished:
                    raise _first_failure(failures, processes)


@contextmanager
def _store(nodes: Nodes, folder: Path) -> Iterator[str]:
    """Yield where ranks find each other: a file that only this user can open, or our address."""
    if nodes.count == 1:
        yield str(folder.absolute() / "store")
        return
    store, address = served_store(socket.gethostname())
    yield address
    del store  # it is served until here


@contextmanager
def _started(
    command: list[str], file: Path, per_node: int, log: IO[str] | None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process group; it has exited when the block ends."""
    threads = os.environ.get("OMP_NUM_THREADS") or max((os.cpu_count() or 1) // per_node, 1)
    ranks = subprocess.Popen(  # noqa: S603 - our own module, no shell
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env={
            **os.environ,
            **device_environment(),
            "OMP_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "false",
        },
        # The parent handles Ctrl-C and asks the ranks to stop.
        start_new_session=True,
    )
    try:
        yield ranks
    finally:
        _ask_to_stop(ranks, file)
        try:
            ranks.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            ranks.kill()
            ranks.wait()
        if ranks.stdout:
            ranks.stdout.close()


def _attend(
    ranks: subprocess.Popen[bytes],
    file: Path,
    report: Report,
    should_stop: ShouldStop,
    heartbeats: Heartbeats,
) -> tuple[list[dict[str, Any]], bool]:
    """Forward progress until all ranks exit; return failures, and whether training finished."""
    events: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
    threading.Thread(target=_read, args=(ranks, events), daemon=True).start()
    failures: list[dict[str, Any]] = []
    is_finished = False
    while True:
        heartbeats.tick()
        if not failures and (hang := heartbeats.hang()) and ranks.stdin:
            ranks.stdin.close()  # without a stop request: nothing can be saved
            raise LostRankError(hang)
        if slow := heartbeats.slow():
            sys.stderr.write(f"warning: {slow}\n")
        if should_stop():
            _ask_to_stop(ranks, file)
        if ranks.poll() is not None and ranks.stdin:
            ranks.stdin.close()  # `node.py` is gone, maybe killed: its ranks must not go on alone
        with suppress(Empty):
            event = events.get(timeout=_POLL_SECONDS)
            if event is None:
                return failures, is_finished
            kind = event.pop("event")
            if kind == "progress":
                report(Progress(**event))
            elif kind == "heartbeat":
                heartbeats.hear(event.pop("rank"), event)
            elif kind == "failed":
                failures.append(event)
            else:
                is_finished = True


def _read(ranks: subprocess.Popen[bytes], events: SimpleQueue[dict[str, Any] | None]) -> None:
    try:
        for event in messages(ranks.stdout or (), "event", other=_print, is_shared=True):
            events.put(event)
    finally:
        events.put(None)


def _print(text: bytes) -> None:
    sys.stderr.write(text.decode("utf-8", "replace"))


def _ask_to_stop(ranks: subprocess.Popen[bytes], file: Path) -> None:
    if ranks.stdin and not ranks.stdin.closed:
        (file.parent / STOP_FILE).touch()
        with suppress(BrokenPipeError):
            ranks.stdin.close()


def _first_failure(failures: list[dict[str, Any]], processes: int) -> BiphasicError | OSError:
    """Return the error that explains the others."""
    if not failures:
        return LostRankError(
            f"one of {processes} processes of the group died (killed, or out of memory?); run "
            "again to resume from the latest checkpoint"
        )
    causes = (failure for failure in failures if failure["kind"] != LostRankError.__name__)
    first = next(causes, failures[0])
    if first["kind"] == OSError.__name__:
        number, reason, file = (first["fields"][name] for name in ("number", "reason", "file"))
        return OSError(first["error"]) if number is None else OSError(number, reason, file)
    kind = getattr(errors, first["kind"], None)
    if isinstance(kind, type) and issubclass(kind, BiphasicError):
        return kind(first["error"], **first.get("fields", {}))
    return LostRankError(f"process {first['rank']} of a group of {processes}: {first['error']}")


@contextmanager
def _quiet_on_terminals() -> Iterator[IO[str] | None]:
    """On a terminal, yield a file for the output of ranks; print it if a rank died."""
    if not sys.stderr.isatty():
        yield None
        return
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        try:
            yield log
        except LostRankError:
            log.seek(0)
            sys.stderr.write(log.read())
            raise
