"""Work that takes long: bars on a terminal, lines elsewhere, nothing where that was asked for."""

import io
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from biphasic import progress
from biphasic.progress import Bars, end_expected, progress_bar, progress_console, task_line


class Paper(io.StringIO):
    """A file that tells when a line was written."""

    def __init__(self):
        super().__init__()
        self.has_line = threading.Event()

    def write(self, text):
        written = super().write(text)
        if "\n" in text:
            self.has_line.set()
        return written


@pytest.fixture
def hurried(monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.001)


def prints_lines():
    return any(thread.name == "biphasic-progress" for thread in threading.enumerate())


def bars_at(now, **task):
    bars = Bars(Console(file=io.StringIO()))
    bars.get_time = lambda: now[0]
    return bars, bars.add_task("training", text="", unit="steps", **task)


def test_a_file_gets_lines_during_work(hurried):
    paper = Paper()
    with progress_bar(Console(file=paper, width=40), "training [red]") as report:
        assert paper.has_line.wait(30)
        report(3, 8, "loss 6.100, 4,300 tokens/s and more than fits on a line of forty characters")
        for _ in range(2):  # one may have been on its way
            paper.has_line.clear()
            assert paper.has_line.wait(30)
    first, *_, last = paper.getvalue().splitlines()
    assert first == "training [red]: 0:00:00 so far"
    assert last == (
        "training [red]: 3 of 8 steps, loss 6.100, 4,300 tokens/s and more than fits on a line of "
        "forty characters, end not known yet"
    )


def test_parts_of_a_work_share_the_time_between_lines(monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 3600.0)
    paper = Paper()
    console = Console(file=paper)
    with progress_bar(console, "first"):
        pass
    progress._PRINTED[console] -= 3600
    with progress_bar(console, "second"):
        assert paper.has_line.wait(30)
    assert paper.getvalue() == "second: 0:00:00 so far\n"


def test_a_quiet_console_and_a_terminal_get_no_lines(hurried):
    for options in ({"quiet": True}, {"force_terminal": True}):
        console = Console(file=io.StringIO(), width=100, **options)
        with progress_bar(console, "training") as report:
            report(3, 8, "")
            assert not prints_lines()
        shown = console.file.getvalue()
        assert ("3 of 8 steps" in shown) == ("force_terminal" in options)


def test_nothing_is_printed_after_the_end(hurried):
    with pytest.raises(ValueError, match="broke"), progress_bar(Console(file=Paper()), "training"):
        raise ValueError("broke")
    assert not prints_lines()


def test_a_line_has_amount_speed_and_expected_end():
    now = [100.0]
    bars, task = bars_at(now, total=None)
    now[0] += 12
    assert task_line(bars.tasks[0]) == "training: 0:00:12 so far"
    # What a resumed run had before counts as done, and says nothing of how fast it goes.
    bars.update(task, completed=200, total=500, text="loss 6.100")
    assert task_line(bars.tasks[0]) == "training: 200 of 500 steps, loss 6.100, end not known yet"
    now[0] += 50
    bars.update(task, completed=300)
    assert re.fullmatch(
        r"training: 300 of 500 steps, 2/s, loss 6\.100, "
        r"end expected in 0:01:40, at (\d{4}-\d\d-\d\d )?\d\d:\d\d",
        task_line(bars.tasks[0]),
    )


def test_slow_work_has_a_rate_and_an_end_too():
    now = [0.0]
    bars, task = bars_at(now, total=10)
    for step in range(1, 4):
        now[0] += 90
        bars.update(task, completed=step)
    assert "3 of 10 steps, 0.67/min, end expected in 0:10:30" in task_line(bars.tasks[0])


def test_an_end_on_another_day_has_a_date():
    assert re.fullmatch(
        r"end expected in 2 days, 0:00:00, at \d{4}-\d\d-\d\d \d\d:\d\d", end_expected(172800)
    )
    assert end_expected(None) == "end not known yet"


@pytest.mark.parametrize("has_widgets", [True, False])
def test_a_notebook_gets_bars_if_ipywidgets_is_installed(monkeypatch, has_widgets):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a kernel
    monkeypatch.setattr(progress, "find_spec", lambda _: object() if has_widgets else None)
    console = progress_console()
    assert console.is_jupyter == has_widgets
    assert not console.is_terminal
    assert Bars(console).disable != has_widgets
    assert Bars(Console(force_jupyter=True)).disable != has_widgets


def test_a_notebook_without_widgets_gets_one_line_that_changes(monkeypatch):
    shown, has_third = [], threading.Event()

    def publish(data, transient, update):
        shown.append((text := data["text/plain"], transient["display_id"], update))
        if text.startswith("training: 3 of 8 steps, "):
            has_third.set()

    shell = SimpleNamespace(kernel=object(), display_pub=SimpleNamespace(publish=publish))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(progress, "find_spec", lambda _: None)
    monkeypatch.setattr(progress, "NOTEBOOK_SECONDS", 0.001)
    with progress_bar(progress_console(), "training") as report:
        report(3, 8, "loss 6.1")
        assert has_third.wait(30)
        report(8, 8, "loss 6.0")
    texts, places, updates = zip(*shown, strict=True)
    assert texts[-1].startswith("training: 8 of 8 steps, ")  # stays below the cell
    assert len(set(places)) == 1
    assert updates == (False, *[True] * (len(shown) - 1))
    shown.clear()
    with progress_bar(progress_console(quiet=True), "training"):
        assert not prints_lines()
    assert shown == []


@pytest.mark.parametrize("in_notebook", [True, False])
def test_a_command_that_a_notebook_runs_prints_lines(monkeypatch, in_notebook):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-color")
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    if in_notebook:
        monkeypatch.setenv("JPY_PARENT_PID", "1")
        monkeypatch.setenv("FORCE_COLOR", "1")
    assert Bars(progress_console()).disable == in_notebook


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="reads Linux's times")
@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_line_names_threads_where_cores_are_busy(hurried, monkeypatch, is_terminal):
    monkeypatch.setattr(progress, "WAITED_SECONDS", 0.05)
    cores, paper, end = os.sched_getaffinity(0), Paper(), time.monotonic() + 60
    os.sched_setaffinity(0, {min(cores)})  # and the others inherit it
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        with progress_bar(Console(file=paper, force_terminal=is_terminal, width=200), "training"):
            while "--threads" not in paper.getvalue() and time.monotonic() < end:
                sum(range(10_000))
    finally:
        os.sched_setaffinity(0, cores)
        for other in others:
            other.kill()
            other.wait()
    assert paper.getvalue().count("--threads") == 1
