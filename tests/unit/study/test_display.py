"""Progress: bars for people who watch, plain lines for files, and no markup from labels."""

import io
import re

import pytest
from rich.console import Console

from biphasic.errors import LockHeldError, StudyError
from biphasic.execution.display import StudyDisplay, job_bar
from biphasic.execution.job import Failure, Progress, throttled
from trivial_jobs import item


def shown(tmp_path, *, is_terminal):
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=100)
    one, two = item("one [red]"), item("two")
    with StudyDisplay(console, [one, two], num_slots=1) as display:
        display.started(one)
        display.progress("one [red]", Progress(3, 8, "loss 6.100"))
        display.delayed(one, LockHeldError("taken", owner="host a"))
        display.delayed(one, LockHeldError("taken", owner="host a"))
        display.ended(one, None, elsewhere=True)
        display.started(two)
        display.progress("two", Progress(1, 8, "loss 5.900"))
        display.delayed(two, StudyError("[bold] broke"))
        display.ended(two, Failure("two", "two", "[bold] broke", 2, None), elsewhere=False)
        display.revived(two)
        display.ended(two, None, elsewhere=False)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_file_gets_a_line_per_job_and_nothing_else(tmp_path):
    assert shown(tmp_path, is_terminal=False).splitlines() == [
        "waiting for one [red], which host a is running",
        "[1/2] done by another process: one [red]",
        "will retry: two: [bold] broke",
        "[2/2] FAILED: two: [bold] broke",
        "retrying on request: two",
        "[2/2] done: two",
    ]


def test_a_terminal_shows_jobs_with_their_progress(tmp_path):
    text = shown(tmp_path, is_terminal=True)
    assert "all jobs" in text
    assert "done by another process: one [red]" in text


def test_a_line_has_the_progress_of_all_jobs(now):
    console = Console(file=io.StringIO(), width=100)
    items = [item(f"job {number}") for number in range(8)]
    display = StudyDisplay(console, items, num_slots=6)
    assert display.line() == "0 of 8 jobs done, end not known yet"
    display.started(items[0])
    now[0] += 60
    display.ended(items[0], None, elsewhere=False)
    display.ended(items[1], Failure("job 1", "job 1", "broke", 1, None), elsewhere=False)
    display.started(items[2])
    display.progress("job 2", Progress(3, 8, "loss 6.100", place="on n1, block 0"))
    # 6 5/8 minutes are left on six slots; the job that failed may be tried again.
    assert re.fullmatch(
        r"1 of 8 jobs done, 1 failed, 2/min, end expected in 0:01:06, at [-\d: ]+; "
        r"running: job 2 \(3 of 8 steps, loss 6\.100, on n1, block 0\)",
        display.line(),
    )
    for each in items[3:]:
        display.started(each)
        display.progress(each.label, Progress(1, 8, ""))
    assert display.line().endswith("job 5 (1 of 8 steps), 2 more")


def test_notes_are_lines():
    console = Console(file=io.StringIO(), width=100)
    noted = Progress(3, 8, "loss 6.100", note="[red] step 2: loss spike")
    with StudyDisplay(console, [item("one")], num_slots=1) as display:
        display.started(item("one"))
        display.progress("one", noted)
    with job_bar(console, "alone") as report:
        report(noted)
    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "one: [red] step 2: loss spike",
        "[red] step 2: loss spike",
    ]


def test_notes_are_never_left_out(now):
    sent: list[Progress] = []
    report = throttled(sent.append)
    for step in range(6):
        report(Progress(step, 8, "", note="spike" if step in {2, 3} else ""))
    assert [progress.done for progress in sent] == [0, 2, 3]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_single_job_has_a_bar_on_terminals_only(tmp_path, is_terminal):
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=100)
    with job_bar(console, "alone") as report:
        report(Progress(3, 8, "loss 6.100"))
    assert ("alone" in console.file.getvalue()) == is_terminal  # type: ignore[attr-defined]
