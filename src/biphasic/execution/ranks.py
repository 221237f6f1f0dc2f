"""A process group: processes of this machine that train one segment together, started by torchrun.

The process that starts the ranks holds the job's lock, passes on what the first rank reports, and
holds the other end of all ranks' standard input. When that closes, ranks end: at once, so that
nobody computes on whose lock is lost, unless they were asked to stop and may save what they have.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any, Protocol

from biphasic import errors
from biphasic.distributed import check_devices
from biphasic.errors import BiphasicError, ConfigError, LostRankError
from biphasic.execution.rank_worker import STOP_FILE
from biphasic.model.compute.device import chosen_device, device_environment
from biphasic.training.compute import ComputeConfig
from biphasic.training.recipe import Recipe

_POLL_SECONDS = 0.2
_END_SECONDS = 30.0  # twice what ranks give themselves


class SegmentJob(Protocol):
    """What is known here of a `TrainJob`."""

    @property
    def recipe(self) -> Recipe:
        """What is trained."""
        ...

    @property
    def compute(self) -> ComputeConfig:
        """By how many processes."""
        ...

    def model_dump_json(self) -> str:
        """Return it as the ranks read it."""
        ...


def run_ranks(
    job: SegmentJob,
    report: Callable[..., None],
    *,
    worker: str,
    should_stop: Callable[[], bool] | None = None,
) -> None:
    """Train a segment in as many processes as `compute.processes` says, and wait for them.

    Each computes on as many threads as `OMP_NUM_THREADS` says; where it says nothing they share
    the cores. What libraries print goes to standard error; on a terminal, which people read, only
    after a failure that nobody foresaw.

    Args:
        job: A `TrainJob`, whose lock the caller holds.
        report: Told how far it is: `done`, `total` and `text`.
        worker: Module that calls `biphasic.execution.rank_worker.serve` when it is run.
        should_stop: Asked some times a second; yes lets the ranks save what they have, and end.

    Raises:
        BiphasicError: What a rank raised; of several the first, those last that only say that
            others had ended.
        LostRankError: A rank ended without having raised it on purpose.
    """
    processes = job.compute.processes
    job.compute.check_rows(job.recipe.placed_phases)
    _check_devices(processes)
    with tempfile.TemporaryDirectory(prefix="biphasic-ranks-") as folder:
        file = Path(folder) / "job.json"
        file.write_text(job.model_dump_json(), encoding="utf-8")
        with _quiet_on_terminals() as log, _started(worker, file, processes, log) as ranks:
            failures, is_finished = _attend(ranks, file, report, should_stop)
            if ranks.wait() or not is_finished:
                raise _first_failure(failures, processes)


def _check_devices(processes: int) -> None:
    """Refuse fewer devices than processes.

    Raises:
        ConfigError: There are fewer, or one alone was chosen.
    """
    chosen = chosen_device()
    if chosen is not None and chosen.index is not None:
        raise ConfigError(
            f"device: {chosen} is one device, and {processes} processes need one each; write cuda"
        )
    if chosen is None or chosen.type == "cuda":
        check_devices(processes)


@contextmanager
def _started(
    worker: str, file: Path, processes: int, log: IO[str] | None
) -> Iterator[subprocess.Popen[str]]:
    """Start a process group; however the block is left, it has ended afterwards."""
    threads = os.environ.get("OMP_NUM_THREADS") or max((os.cpu_count() or 1) // processes, 1)
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    ranks = subprocess.Popen(  # noqa: S603 - our own module, no shell
        [sys.executable, "-m", *torchrun, "-m", worker, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        encoding="utf-8",
        env={
            **os.environ,
            **device_environment(),
            "OMP_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "false",
        },
        # Ctrl-C is for the process that watches; it asks the ranks to stop.
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
    ranks: subprocess.Popen[str],
    file: Path,
    report: Callable[..., None],
    should_stop: Callable[[], bool] | None,
) -> tuple[list[dict[str, Any]], bool]:
    """Pass on progress until all ranks have ended; return failures, and whether it is done."""
    events: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
    threading.Thread(target=_read, args=(ranks, events), daemon=True).start()
    failures: list[dict[str, Any]] = []
    is_finished = False
    while True:
        if should_stop is not None and should_stop():
            _ask_to_stop(ranks, file)
        with suppress(Empty):
            event = events.get(timeout=_POLL_SECONDS)
            if event is None:
                return failures, is_finished
            kind = event.pop("event")
            if kind == "progress":
                report(**event)
            elif kind == "failed":
                failures.append(event)
            else:
                is_finished = True


def _read(ranks: subprocess.Popen[str], events: SimpleQueue[dict[str, Any] | None]) -> None:
    try:
        for line in ranks.stdout or ():
            if line.startswith("{"):
                events.put(json.loads(line))
            else:  # of torchrun, which shares the pipe
                sys.stderr.write(line)
    finally:
        events.put(None)


def _ask_to_stop(ranks: subprocess.Popen[str], file: Path) -> None:
    (file.parent / STOP_FILE).touch()
    with suppress(BrokenPipeError):
        if ranks.stdin:
            ranks.stdin.close()


def _first_failure(failures: list[dict[str, Any]], processes: int) -> BiphasicError:
    """Return the error that explains the others."""
    told = [each for each in failures if each["kind"] != LostRankError.__name__] or failures
    if not told:
        return LostRankError(
            f"one of {processes} processes that trained together has ended (killed, or out of "
            "memory?); run again, it goes on from the latest checkpoint"
        )
    first = told[0]
    kind = getattr(errors, first["kind"], None)
    if isinstance(kind, type) and issubclass(kind, BiphasicError):
        return kind(first["error"], **first.get("fields", {}))
    return LostRankError(
        f"process {first['rank']} of {processes} that trained together: {first['error']}"
    )


@contextmanager
def _quiet_on_terminals() -> Iterator[IO[str] | None]:
    """Yield a file for what ranks print where a person would read it; it is shown if they died."""
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
