"""Run a single job in this process."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from rich.console import Console

from biphasic.errors import DoneElsewhereError, LockHeldError, StoppedError
from biphasic.execution.display import job_bar
from biphasic.execution.job import Job, ShouldStop
from biphasic.progress import say_on

# Ctrl-C, and signals that schedulers and init systems send before they kill.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_TAKEN_SECONDS = 2.0


def run_here(job: Job, *, console: Console, deadline: float = math.inf) -> None:
    """Run a job here, or wait for its owner; at a signal or the deadline it saves and stops."""
    say = say_on(console)
    is_said = False
    with stopped_by_interrupt(say) as is_asked:

        def should_stop() -> bool:
            return is_asked() or time.monotonic() >= deadline

        while True:
            try:
                with job_bar(console, job.label) as report, suppress(DoneElsewhereError):
                    job.run(report, should_stop=should_stop)
            except LockHeldError as error:
                if not is_said:
                    say(f"waiting for {job.label}, which {error.owner} is running")
                    is_said = True
                if should_stop():
                    raise StoppedError("stopped; run again to resume") from None
                time.sleep(_TAKEN_SECONDS)
            else:
                if is_asked():  # in its last seconds; the command would go on with what follows
                    raise StoppedError(f"stopped after {job.label}; run again to resume")
                return


@contextmanager
def stopped_by_interrupt(say: Callable[[str], None]) -> Iterator[ShouldStop]:
    """Yield a function that returns whether SIGINT or SIGTERM came; a second one interrupts."""
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set  # signals belong to the main thread
        return

    def note(number: int, frame: FrameType | None) -> None:
        if pressed.is_set():
            signal.default_int_handler(number, frame)
        pressed.set()
        say("stopping: saving progress; press Ctrl-C again to quit immediately")

    before = {number: signal.signal(number, note) for number in STOPPING}
    try:
        yield pressed.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
