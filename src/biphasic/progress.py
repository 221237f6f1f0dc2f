"""Progress of long work: bars on a terminal, a line or bars in a notebook, lines elsewhere."""

from __future__ import annotations

import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from biphasic.amounts import clock, speed
from biphasic.errors import visible

# Seconds between lines on a console; documented as ten, since a busy machine prints late.
LINE_SECONDS = 9.0
NOTEBOOK_SECONDS = 1.0  # between updates of a notebook's line
WAITED_SECONDS = 60.0  # of all threads together, for cores that other programs use
# Time of each console's last line, shared by consecutive parts of work.
_PRINTED: WeakKeyDictionary[Console, float] = WeakKeyDictionary()
_THREAD = "biphasic-progress"


class AmountReport(Protocol):
    """Progress callback."""

    def __call__(self, done: float, total: float | None, text: str = "") -> None:
        """Report the amount done, the total if known, and a short text such as the loss."""


def progress_console(*, quiet: bool = False) -> Console:
    """Return a console on standard error, with bars on a terminal or in a notebook."""
    # Commands that a notebook runs print lines, because it cannot redraw their bars.
    # Not rich's own test: it takes FORCE_COLOR, which notebooks and CI set, for a terminal.
    is_terminal = sys.stderr.isatty() and "JPY_PARENT_PID" not in os.environ
    return Console(
        stderr=True,
        quiet=quiet,
        force_terminal=None if is_terminal else False,
        force_jupyter=None if _has_widgets() else False,
    )


def say_on(console: Console) -> Callable[[str], None]:
    """Return a function that prints plain text, with control characters escaped."""

    def say(text: str) -> None:
        console.print(visible(text), markup=False, highlight=False, soft_wrap=True)

    return say


class Bars(Progress):
    """Bars on a terminal or in a notebook, else lines; tasks have a short `text`, and a `unit`."""

    def __init__(self, console: Console, *, line: Callable[[], str] | None = None) -> None:
        """Prepare; bars or lines begin on entry. `line` replaces the line of all tasks."""
        shows_bars = console.is_terminal or (console.is_jupyter and _has_widgets())
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            _CountColumn(),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            console=console,
            transient=True,
            disable=console.quiet or not shows_bars,
            speed_estimate_period=600.0,  # one step of a large model may take a minute
        )
        self._line = line or (lambda: "; ".join(map(task_line, self.tasks)))
        self._ended = threading.Event()
        show = self._print_lines
        # What publishes displays below a cell, if this process is a notebook's kernel.
        if self.disable and console.stderr and (ipython := sys.modules.get("IPython")):
            shell: Any = ipython.get_ipython()
            if hasattr(shell, "kernel"):
                show = partial(self._rewrite_line, shell.display_pub.publish)
        name = _THREAD if self.disable else "biphasic-threads"
        self._lines = threading.Thread(target=show, name=name, daemon=True)

    def start(self) -> None:
        """Show the bars, or start printing lines."""
        super().start()
        if not self.console.quiet:
            self._lines.start()

    def stop(self) -> None:
        """Remove the bars, or stop printing lines."""
        self._ended.set()
        if self._lines.is_alive():
            self._lines.join()
        super().stop()

    def _print_lines(self) -> None:
        last, before, is_said = _PRINTED.setdefault(self.console, time.monotonic()), _times(), False
        while not self._ended.wait(max(last + LINE_SECONDS - time.monotonic(), 0.0)):
            if self.disable:
                say_on(self.console)(self._line())
            last = _PRINTED[self.console] = time.monotonic()
            if is_said:
                continue
            ran, waited = (now - then for now, then in zip(_times(), before, strict=True))
            if is_said := waited > max(ran, WAITED_SECONDS):
                say_on(self.console)(
                    f"threads ran for {ran:,.0f} s and waited {waited:,.0f} s for cores that other "
                    "programs use; fewer may be faster (--threads or OMP_NUM_THREADS)"
                )

    def _rewrite_line(self, publish: Callable[..., None]) -> None:
        """Show one line below a notebook's cell, which needs no widgets; the last one stays."""
        place = {"display_id": uuid.uuid4().hex}
        is_shown = has_ended = False
        while not has_ended:
            has_ended = self._ended.wait(NOTEBOOK_SECONDS)
            if is_shown or not has_ended:
                publish(
                    data={"text/plain": visible(self._line())}, transient=place, update=is_shown
                )
                is_shown = True


@contextmanager
def progress_bar(console: Console, label: str, *, unit: str = "steps") -> Iterator[AmountReport]:
    """Show the progress of one task; yield its progress callback."""
    bars = Bars(console)
    task = bars.add_task(visible(label), total=None, text="", unit=unit)

    def report(done: float, total: float | None, text: str = "") -> None:
        bars.update(task, completed=done, total=total, text=text)

    with bars:
        yield report


def task_line(task: Task) -> str:
    """Describe a task in one line: amount done, speed, expected end."""
    if task.total is None or task.finished:  # what follows the last step takes time as well
        left = f"{clock(task.elapsed or 0.0)} so far"
    else:
        left = end_expected(task.time_remaining)
    return f"{task.description}: {', '.join(filter(None, (task_text(task), left)))}"


def task_text(task: Task) -> str:
    """Format a task as `3 of 8 steps, 2.1/s, loss 6.1`; empty before the first report."""
    return ", ".join(filter(None, (_count(task), task.fields["text"])))


def end_expected(seconds: float | None) -> str:
    """Format the expected end from the seconds left; None means unknown."""
    if seconds is None:
        return "end not known yet"
    now = datetime.now().astimezone()
    end = now + timedelta(seconds=seconds)
    day = "" if end.date() == now.date() else "%Y-%m-%d "
    return f"end expected in {clock(seconds)}, at {end.strftime(f'{day}%H:%M')}"


def _times() -> tuple[float, float]:
    """Return how long this process's threads ran, and waited for a core; zeros if unknown."""
    ran = waited = 0
    for file in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # the thread has ended
            nanoseconds = file.read_text().split()
            ran, waited = ran + int(nanoseconds[0]), waited + int(nanoseconds[1])
    return ran / 1e9, waited / 1e9


def _has_widgets() -> bool:
    return find_spec("ipywidgets") is not None


def _count(task: Task) -> str:
    if task.total is None and not task.completed:
        return ""
    of = "" if task.total is None else f" of {task.total:,.0f}"
    count = f"{task.completed:,.0f}{of} {task.fields['unit']}"
    return ", ".join(filter(None, (count, speed(task.speed))))


class _CountColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(_count(task))
