"""Progress: bars for people who watch, plain lines for files, and no markup from labels."""

import io

import pytest
from rich.console import Console

from biphasic.errors import StudyError
from biphasic.study.display import StudyDisplay, job_bar
from biphasic.study.jobs import FinetuneJob, Progress, ScoredTask, TaskInput
from biphasic.tasks.protocol import FinetuneProtocol


def job(tmp_path, label):
    task = {"name": "t", "folder": tmp_path, "protocol": FinetuneProtocol()}
    return FinetuneJob(
        id=label,
        label=label,
        store=tmp_path,
        tokenizer=tmp_path,
        encoder=tmp_path,
        state="s",
        training=TaskInput(**task),
        evaluations=(ScoredTask(**task, runs=()),),
    )


def shown(tmp_path, *, is_terminal):
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=100)
    with StudyDisplay(console, num_jobs=2) as display:
        display.progress(job(tmp_path, "one [red]"), Progress(3, 8, "loss 6.100"))
        display.ended(job(tmp_path, "one [red]"), None)
        display.progress(job(tmp_path, "two"), Progress(1, 8, "loss 5.900"))
        display.ended(job(tmp_path, "two"), StudyError("two: [bold] broke"))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_file_gets_a_line_per_job_and_nothing_else(tmp_path):
    assert shown(tmp_path, is_terminal=False).splitlines() == [
        "[1/2] done: one [red]",
        "[2/2] FAILED: two: [bold] broke",
    ]


def test_a_terminal_shows_jobs_with_their_progress(tmp_path):
    text = shown(tmp_path, is_terminal=True)
    assert "all jobs" in text
    assert "done: one [red]" in text


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_single_job_has_a_bar_on_terminals_only(tmp_path, is_terminal):
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=100)
    with job_bar(console, job(tmp_path, "alone")) as report:
        report(Progress(3, 8, "loss 6.100"))
    assert ("alone" in console.file.getvalue()) == is_terminal  # type: ignore[attr-defined]
