"""A long-lived worker: jobs in, progress out, one JSON object a line.

It reads jobs from its standard input and writes events to what was its standard output; anything
else that libraries print goes to its log. It ends when its input ends, so it never outlives the
process that started it, however that ended.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from queue import SimpleQueue
from typing import IO, Any

from pydantic import TypeAdapter

from biphasic.errors import BiphasicError

_PROGRESS_SECONDS = 0.2


def main() -> None:
    """Serve until the input ends."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    jobs: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_read_jobs, args=(jobs,), daemon=True).start()
    _prepare_process(num_threads=int(sys.argv[1]))
    from biphasic.study.jobs import Job  # noqa: PLC0415 - after the allocator is tuned

    adapter: TypeAdapter[Job] = TypeAdapter(Job)
    while True:
        _serve(adapter, jobs.get(), events)


def _read_jobs(jobs: SimpleQueue[str]) -> None:
    for line in sys.stdin:
        jobs.put(line)
    # The parent is gone or done: a half-finished job is resumed by whoever comes next.
    os._exit(0)


def _prepare_process(*, num_threads: int) -> None:
    from biphasic.training.memory import tune_allocator  # noqa: PLC0415

    tune_allocator()
    import torch  # noqa: PLC0415

    torch.set_num_threads(num_threads)


def _serve(adapter: TypeAdapter[Any], line: str, events: IO[str]) -> None:
    last = 0.0

    def report(progress: Any) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= _PROGRESS_SECONDS:
            last = now
            _send(events, event="progress", **vars(progress))

    try:
        adapter.validate_json(line).run(report)
    except BiphasicError as error:
        _send(events, event="failed", error=str(error))
    except Exception as error:  # noqa: BLE001 - a worker outlives any job; its log says why
        traceback.print_exc()
        _send(events, event="failed", error=f"{type(error).__name__}: {error}")
    else:
        _send(events, event="finished")


def _send(events: IO[str], **event: Any) -> None:
    events.write(json.dumps(event) + "\n")
    events.flush()


if __name__ == "__main__":
    main()
