"""Jobs in this process, one after the other: for commands that do a single thing."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console

from biphasic.errors import LockHeldError
from biphasic.execution.display import job_bar
from biphasic.execution.job import Runnable, ShouldStop
from biphasic.progress import say_on

STOPPING = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and what schedulers and init systems send before they kill."""
_TAKEN_SECONDS = 2.0


def run_here(job: Runnable, *, console: Console) -> None:
    """Do a job in this process, once no other does it.

    Ctrl-C and SIGTERM let it save what it has; a second one ends it at once.

    Raises:
        StoppedError: It was stopped so.
        BiphasicError: It failed.
    """
    say = say_on(console)
    is_said = False
    with stopped_by_interrupt(say) as should_stop:
        while True:
            try:
                with job_bar(console, job.label) as report:
                    job.run(report, should_stop=should_stop)
            except LockHeldError as error:
                if not is_said:
                    say(f"waiting for {job.label}, done now by {error.owner}")
                    is_said = True
                time.sleep(_TAKEN_SECONDS)
            else:
                return


@contextmanager
def stopped_by_interrupt(say: Callable[[str], None]) -> Iterator[ShouldStop]:
    """Yield what tells whether Ctrl-C was pressed or SIGTERM came; the second one interrupts."""
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set  # signals belong to the main thread
        return

    def note(number: int, frame: FrameType | None) -> None:
        if pressed.is_set():
            signal.default_int_handler(number, frame)
        pressed.set()
        say("stopping: what there is will be saved; once more to end at once")

    before = {number: signal.signal(number, note) for number in STOPPING}
    try:
        yield pressed.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
