"""One rank of a process group, a process that torchrun starts with the file of a job.

It trains the job in the file together with the other ranks. The first rank says how far they are,
one JSON object a line, on what was its standard output; each says what it failed of. Anything else
that libraries print goes to standard error. On SIGTERM, and when the standard input ends after the
ranks were asked to stop, they save what they have, within some seconds. When it ends otherwise, the
process that started them has died, and they end at once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from biphasic.errors import BiphasicError, DivergedError, StoppedError
from biphasic.execution.job import Progress, Report, ShouldStop

if TYPE_CHECKING:
    from biphasic.distributed import ProcessGroup

STOP_FILE = "stop"
"""Lies beside the job's file before the input is closed, where the ranks are asked to stop."""
_PROGRESS_SECONDS = 0.2
_STOP_SECONDS = 15.0


Train = Callable[[str, Report, ShouldStop, "ProcessGroup"], None]
"""Trains a job, given as JSON, as a rank of a process group."""


def serve(train: Train) -> None:
    """Train the job in the file that the first argument names, and end the process."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    file, is_over = Path(sys.argv[1]), threading.Event()
    # Schedulers and service managers send SIGTERM to every process that they started.
    signal.signal(signal.SIGTERM, lambda *_: _stop_in_time(is_over))
    threading.Thread(target=_watch_input, args=(file, is_over), daemon=True).start()
    code = _train(train, file, events, is_over)
    sys.stderr.flush()
    # Not in order: ranks that have lost one another would wait for each other in their last words.
    os._exit(code)


def _watch_input(file: Path, is_over: threading.Event) -> None:
    sys.stdin.buffer.read()
    if (file.parent / STOP_FILE).exists():
        _stop_in_time(is_over)
    else:
        os._exit(1)


def _stop_in_time(is_over: threading.Event) -> None:
    """Ask the training to stop, and end this process if it has not done so within some seconds."""
    is_over.set()
    timer = threading.Timer(_STOP_SECONDS, os._exit, args=(1,))
    timer.daemon = True
    timer.start()


def _train(train: Train, file: Path, events: IO[str], is_over: threading.Event) -> int:
    """Train the job in a file; return the process's exit code."""
    try:
        _join_and_train(train, file, events, is_over)
    except StoppedError as error:  # by all ranks at once
        _send(events, event="failed", **_failure(error))
        return 0
    except BiphasicError as error:
        _send(events, event="failed", **_failure(error))
        return 1
    except Exception as error:  # noqa: BLE001 - whoever started the process group is told, its log says why
        traceback.print_exc()
        _send(events, event="failed", **_failure(error))
        return 1
    return 0


def _join_and_train(train: Train, file: Path, events: IO[str], is_over: threading.Event) -> None:
    from biphasic.training.memory import tune_allocator  # noqa: PLC0415

    tune_allocator()
    import torch  # noqa: PLC0415 - after the allocator is tuned

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    from biphasic.distributed import joined_process_group  # noqa: PLC0415

    last = 0.0

    def report(progress: Progress) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= _PROGRESS_SECONDS:
            last = now
            _send(events, event="progress", **vars(progress))

    with joined_process_group() as ranks:
        train(file.read_text(encoding="utf-8"), report, is_over.is_set, ranks)
        if ranks.is_first:
            _send(events, event="finished")


def _failure(error: Exception) -> dict[str, Any]:
    foreseen = isinstance(error, BiphasicError)
    return {
        "rank": int(os.environ.get("RANK", "0")),
        "kind": type(error).__name__ if foreseen else "",
        "error": str(error) if foreseen else f"{type(error).__name__}: {error}",
        "fields": {"divergence": error.divergence} if isinstance(error, DivergedError) else {},
    }


def _send(events: IO[str], **event: Any) -> None:
    try:
        events.write(json.dumps(event) + "\n")
        events.flush()
    except BrokenPipeError:
        # Nobody listens any more; what is in the store is all that counts.
        os._exit(1)
