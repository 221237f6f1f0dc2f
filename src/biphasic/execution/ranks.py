"""Process groups: train one segment with several processes, here or on the nodes of a block.

The parent holds the job's lock and the other end of the ranks' standard input. When that closes,
ranks exit immediately, because the lock may be lost; after a stop request they save their progress
first. Ranks send heartbeats, which show that one hangs or lags: time-outs of gloo and nccl name no
rank, and `torch.distributed.monitored_barrier` would send one more message in every step.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from statistics import median
from typing import IO, Any

from biphasic.amounts import duration
from biphasic.child import messages
from biphasic.config import DURATION, duration_seconds
from biphasic.distributed import Activity, check_devices, served_store
from biphasic.errors import BiphasicError, ConfigError, LostRankError
from biphasic.execution import rank_worker
from biphasic.execution.job import Progress, Report, ShouldStop, made_again, never
from biphasic.execution.rank_worker import STOP_FILE
from biphasic.execution.slots import Nodes
from biphasic.model.compute.device import chosen_device, device_environment

# Environment variable: how long a rank may stay at one place of a step, as HH:MM:SS.
TIMEOUT = "BIPHASIC_RANK_TIMEOUT"
_DEFAULT = "00:10:00"
_LONG_SECONDS = 30 * 60.0
# Activities that may take long, and that one rank does while the others wait.
_LONG = frozenset({Activity.STARTING, Activity.HELDOUT, Activity.SAVING})
_WINDOW_STEPS = 20
_WINDOW_SECONDS = 60.0
_SLOW = 1.5
_SLOW_SHARE = 0.1  # a slow rank is named if it costs this share of all time
_LONGEST_TICK = 1.0
_POLL_SECONDS = 0.2
_END_SECONDS = 60.0  # `rank_worker.py` gives ranks 30 s to end before it kills them


def run_ranks(job: Any, report: Report, *, worker: str, should_stop: ShouldStop = never) -> None:
    """Train a segment in `compute.processes` processes, and wait for them."""
    # Each uses `OMP_NUM_THREADS` threads; if it is unset they share the cores. Output of libraries
    # goes to standard error; on a terminal, only after an unexpected failure.
    # The caller holds the lock of the `TrainJob`. `worker` is a module that calls
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
            command = [*nodes.launch, *rank_worker.command(store, nodes.count, per_node, rank)]
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
            ranks.stdin.close()  # maybe killed: its ranks must not go on alone
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
    # Ranks that lose another one fail, too; what that one met explains all.
    causes = (failure for failure in failures if failure["kind"] != LostRankError.__name__)
    first = next(causes, failures[0])
    text = f"process {first['rank']} of a group of {processes}: {first['error']}"
    return made_again(first) or LostRankError(text)


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


@dataclass(frozen=True)
class _Beat:
    """The latest heartbeat of a rank, and when it was heard; see `distributed.Heartbeat`."""

    step: int
    activity: Activity
    waits: bool
    own_seconds: float
    heard: float


class Heartbeats:
    """Latest heartbeats of all ranks."""

    # Time passes only while `tick` is called: a process that was itself stopped, or waited for a
    # slow disk, does not take its ranks for hanging.

    def __init__(self, num_ranks: int) -> None:
        """Begin with ranks that start."""
        text = os.environ.get(TIMEOUT) or _DEFAULT
        if not re.match(DURATION, text) or not duration_seconds(text):
            raise ConfigError(
                f"{TIMEOUT} {text}: give a time as HH:MM:SS, or unset it for {_DEFAULT}"
            )
        self._limit = float(duration_seconds(text))
        self._now, self._ticked = 0.0, time.monotonic()
        starting = _Beat(0, Activity.STARTING, waits=False, own_seconds=0.0, heard=0.0)
        self._beats = dict.fromkeys(range(num_ranks), starting)
        self._window: dict[int, _Beat] = {}
        self._told_slow: set[int] = set()

    def tick(self) -> None:
        """Let the time since the last call pass, at most a second."""
        now = time.monotonic()
        self._now += min(now - self._ticked, _LONGEST_TICK)
        self._ticked = now

    def hear(self, rank: int, message: Mapping[str, Any]) -> None:
        """Take a heartbeat in; ranks send one only if they have moved."""
        self._beats[rank] = _Beat(
            message["step"],
            Activity(message["activity"]),
            waits=message["waits"],
            own_seconds=message["own_seconds"],
            heard=self._now,
        )

    def hang(self) -> str | None:
        """Describe the ranks that hang; None if there are none."""
        late: dict[int, _Beat] = {}
        for rank, beat in self._beats.items():
            is_long = beat.activity in _LONG and not beat.waits
            limit = max(3 * self._limit, _LONG_SECONDS) if is_long else self._limit
            if self._now - beat.heard > limit:
                late[rank] = beat
        hanging = {rank: beat for rank, beat in late.items() if not beat.waits}
        # Late ranks that wait are held up by others that still move.
        if not hanging and len(late) < len(self._beats):
            return None
        resume = "run again to resume from the latest checkpoint"
        if not hanging:
            first = min(late.values(), key=lambda beat: beat.heard)
            return (
                f"no rank has moved since step {first.step} for {self._age(first)}: all wait for "
                f"each other (is the network between them down?); {resume}"
            )
        whose = "; ".join(
            f"rank {rank} has not moved"
            + ("" if beat.activity == Activity.STARTING else f" since step {beat.step}")
            + f" for {self._age(beat)} (it was {beat.activity})"
            for rank, beat in list(hanging.items())[:3]
        )
        more = f"; and {len(hanging) - 3} more" if len(hanging) > 3 else ""
        waiting = {rank: beat for rank, beat in self._beats.items() if beat.waits}
        return f"{whose}{more}{_waiting(waiting, 'it' if len(hanging) == 1 else 'them')}; {resume}"

    def slow(self) -> str | None:
        """Describe a rank that is much slower than the others, once for each rank."""
        # Own work in the same steps, without waiting; on CUDA, the host's part of a step.
        if any(beat.activity == Activity.STARTING for beat in self._beats.values()):
            return None
        if not self._window:
            self._window = dict(self._beats)
        pairs = {rank: (self._window[rank], beat) for rank, beat in self._beats.items()}
        if any(
            last.step - first.step < _WINDOW_STEPS or last.heard - first.heard < _WINDOW_SECONDS
            for first, last in pairs.values()
        ):
            return None
        self._window = dict(self._beats)
        means = {
            rank: (last.own_seconds - first.own_seconds) / (last.step - first.step)
            for rank, (first, last) in pairs.items()
        }
        slowest = max(means, key=lambda rank: means[rank])
        others = median(mean for rank, mean in means.items() if rank != slowest)
        first, last = pairs[slowest]
        cost = (means[slowest] - others) * (last.step - first.step) / (last.heard - first.heard)
        if slowest in self._told_slow or means[slowest] < _SLOW * others or cost < _SLOW_SHARE:
            return None
        self._told_slow.add(slowest)
        return (
            f"rank {slowest} is slow: its part of a step takes {means[slowest]:.3g} s, that of the "
            f"other ranks {others:.3g} s (median), and they wait for it"
        )

    def _age(self, beat: _Beat) -> str:
        return duration(self._now - beat.heard)


def _waiting(beats: Mapping[int, _Beat], whom: str) -> str:
    """Say who waits, in which steps."""
    if not beats:
        return ""
    steps = " and ".join(map(str, sorted({beat.step + 1 for beat in beats.values()})))
    if len(beats) == 1:
        return f"; rank {next(iter(beats))} waits for {whom} in step {steps}"
    ranks = list(map(str, beats))
    if len(ranks) > 8:
        ranks = [*ranks[:2], f"... {ranks[-1]}"]
    return f"; ranks {', '.join(ranks)} wait for {whom} in step {steps}"
