"""The rules of executors, on jobs that do nothing.

`python -m biphasic.conformance.executors STORE THREADS` runs such jobs, as the worker of an
executor.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from biphasic.conformance.rules import Rule, check_rules
from biphasic.errors import BiphasicError, DataError, StoppedError
from biphasic.execution.executor import ExecutorConfig, Work
from biphasic.execution.job import Job, JobFailedError, Progress, Report, ShouldStop, never
from biphasic.execution.worker import serve
from biphasic.plugins import short_name

_JOBS = 3
_SECONDS = 120.0
_LOOK_SECONDS = 0.05
_PROBLEM = "the job fails on purpose"


class TrialJob(Job):
    """Writes its name into the store; `fail` in its name fails, and `wait` waits to be stopped."""

    def run(self, report: Report, *, should_stop: ShouldStop = never) -> None:
        """Run it, whether it was run before or not."""
        if self.id.startswith("fail"):
            raise DataError(_PROBLEM)
        report(Progress(1, 1, "begun"))
        with (self.store / self.id).open("a", encoding="utf-8") as file:
            file.write("begun\n")
        if self.id.startswith("wait"):
            while not should_stop():
                time.sleep(_LOOK_SECONDS)
            (self.store / f"{self.id}-stopped").touch()
            raise StoppedError("stopped")


def load_trial(store: Path, identity: str) -> TrialJob:
    """Return the job with a name."""
    return TrialJob(id=identity, label=identity, store=store)


@dataclass(frozen=True)
class Case:
    """An executor with settings, in a store of its own."""

    settings: ExecutorConfig
    store: Path

    def work(self, seen: dict[str, Progress] | None = None) -> Work:
        """Return what the executor is given."""
        seen = {} if seen is None else seen
        return Work(
            self.store,
            self.store / "study",
            load_job=load_trial,
            worker=__name__,
            processes=1,
            watch=seen.__setitem__,
            say=lambda _: None,
        )


def check_executor(settings: ExecutorConfig) -> None:
    """Check that an executor keeps all rules.

    Raises:
        ConfigError: It breaks a rule, which the message names.
    """
    with tempfile.TemporaryDirectory() as store:
        settings.check(Path(store), processes=1)
        check_rules(Case(settings, Path(store)), RULES, where=short_name(settings.executor))


def _slots(case: Case) -> Iterator[str]:
    """It has slots before it starts and when it has started."""
    with case.settings.start(case.work()) as started:
        for number in (case.settings.num_slots, started.num_slots):
            if not isinstance(number, int) or number < 1:
                yield f"num_slots is {number!r}; it must be a whole number above 0"


def _runs(case: Case) -> Iterator[str]:
    """Each job runs once, its progress is shown, and its future ends when it has ended."""
    seen: dict[str, Progress] = {}
    names = [f"run-{number}" for number in range(_JOBS)]
    with case.settings.start(case.work(seen)) as started:
        futures = [started.submit(name) for name in names]
        for name, future in zip(names, futures, strict=True):
            if error := _error(future):
                yield f"a job that does nothing ends with {error}{_last_line(error)}"
            elif not (case.store / name).is_file():
                yield "the future of a job has ended, and the job has not run"
    for name in names:
        if (case.store / name).read_text(encoding="utf-8") != "begun\n":
            yield "a job ran twice"
        if name not in seen:
            yield "the progress of a job did not reach `watch`"


def _failures(case: Case) -> Iterator[str]:
    """A job that fails raises its own message in the future, and the next job runs."""
    with case.settings.start(case.work()) as started:
        error = _error(started.submit("fail"))
        if not isinstance(error, BiphasicError) or _PROBLEM not in str(error):
            yield f"a job failed with '{_PROBLEM}', and its future ended with {error or 'no error'}"
        elif isinstance(error, JobFailedError) and not error.is_final:
            yield "invalid data fail again: is_final must be true, or the job is retried"
        if error := _error(started.submit("run-after")):
            yield f"after a failed job, the next one ends with {error}"


def _stops(case: Case) -> Iterator[str]:
    """At the end of the context, running jobs are asked to stop, and waiting ones do not begin."""
    with ExitStack() as stack:
        started = stack.enter_context(case.settings.start(case.work()))
        names = [f"wait-{number}" for number in range(started.num_slots + 1)]
        futures = {name: started.submit(name) for name in names}
        end = time.monotonic() + _SECONDS
        while not (begun := [name for name in names if (case.store / name).is_file()]):
            if time.monotonic() > end:
                yield f"no job has begun within {_SECONDS:.0f} seconds"
                return
            time.sleep(_LOOK_SECONDS)
    if not all((case.store / f"{name}-stopped").is_file() for name in begun):
        yield "a running job was not asked to stop, so it could not save its progress"
    for future in futures.values():
        if not future.cancelled() and not isinstance(error := _error(future), BiphasicError):
            yield f"a job that was stopped ended with {error or 'no error'}"


def _last_line(error: BaseException) -> str:
    """Return the last line of a job's log, whose folder is deleted with the store."""
    log = error.log if isinstance(error, JobFailedError) else None
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log else []
    last = next(filter(None, reversed(lines)), "")
    return f": {last}" if last else ""


def _error(future: Future[None]) -> BaseException | None:
    with suppress(TimeoutError):
        return future.exception(timeout=_SECONDS)
    return TimeoutError(f"no end within {_SECONDS:.0f} seconds")


RULES: dict[str, Rule[Case]] = {
    "slots": _slots,
    "runs": _runs,
    "failures": _failures,
    "stops": _stops,
}
"""The rules by name, in the order of their checks."""


if __name__ == "__main__":
    serve(load_trial)
