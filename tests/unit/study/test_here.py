"""Jobs in this process: they wait for others, and Ctrl-C lets them save what they have."""

import io
import os
import signal
import time

import pytest
from rich.console import Console

from biphasic.errors import LockHeldError, StoppedError
from biphasic.execution.executor import run_here


class FakeJob:
    id = label = "a job"

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)

    def run(self, _report, *, should_stop):
        return self.outcomes.pop(0)(should_stop)


def taken(_):
    raise LockHeldError("taken", owner="host a, process 7")


def printed(job):
    console = Console(file=io.StringIO(), width=100)
    run_here(job, console=console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_job_that_another_process_does_is_waited_for(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    job = FakeJob(taken, taken, lambda _: None)
    assert printed(job) == "waiting for a job, which host a, process 7 is running\n"
    assert (len(slept), job.outcomes) == (2, [])


def interrupt(_):
    os.kill(os.getpid(), signal.SIGINT)


def interrupt_and_wait(should_stop):
    interrupt(should_stop)
    taken(should_stop)


@pytest.mark.parametrize("act", [interrupt, interrupt_and_wait])
def test_nothing_follows_an_interrupt_in_the_last_moment_or_while_waiting(act, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("waits"))
    with pytest.raises(StoppedError, match="run again to resume"):
        printed(FakeJob(act))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_interrupt_asks_and_the_second_ends(number):
    before = signal.getsignal(number)
    asked = []

    def once(should_stop):
        assert not should_stop()
        os.kill(os.getpid(), number)
        assert should_stop()
        asked.append(True)
        raise StoppedError("stopped after step 3")

    with pytest.raises(StoppedError, match="after step 3"):
        printed(FakeJob(once))

    def twice(should_stop):
        os.kill(os.getpid(), number)
        assert should_stop()
        os.kill(os.getpid(), number)

    with pytest.raises(KeyboardInterrupt):
        printed(FakeJob(twice))
    assert asked
    assert signal.getsignal(number) is before
