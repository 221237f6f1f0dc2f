"""Scheduling: longest path first, retries, failures, and results of other processes."""

import errno
from concurrent.futures import Future

import pytest

import trivial_jobs
from biphasic.errors import ConfigError, DoneElsewhereError, LockHeldError
from biphasic.execution.job import (
    JobFailedError,
    Request,
    RequeuedError,
    longest_paths,
)
from biphasic.execution.scheduler import Clock, RetryPolicy, Scheduler


class FakeExecutor:
    """Does each job when it is asked what happened, in the order in which they came."""

    def __init__(self, num_slots=1, outcomes=None):
        self.num_slots = num_slots
        self.outcomes = {name: list(each) for name, each in (outcomes or {}).items()}
        self.submitted = []
        self.most_at_once = 0
        self._open = []

    def submit(self, job_id):
        self.submitted.append(job_id)
        future = Future()
        self._open.append((job_id, future))
        self.most_at_once = max(self.most_at_once, len(self._open))
        return future

    def step(self):
        """End the job that has run longest."""
        if self._open:
            job_id, future = self._open.pop(0)
            outcome = self.outcomes.get(job_id) or [None]
            error = outcome.pop(0)
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)


class Notes:
    """A watcher that drives the engine and records its calls."""

    def __init__(self, executor):
        self.executor, self.lines = executor, []

    def started(self, item):
        self.lines.append(f"started {item.id}")

    def ended(self, item, error, *, elsewhere):
        how = "failed" if error else "elsewhere" if elsewhere else "done"
        self.lines.append(f"{how} {item.id}")

    def delayed(self, item, _error):
        self.lines.append(f"delayed {item.id}")

    def revived(self, item):
        self.lines.append(f"revived {item.id}")

    def tick(self):
        self.executor.step()


class Quick(Clock):
    taken_seconds = 0.01
    listen_seconds = 0.0


def item(name, needs=None, cost=1.0, **options):
    return trivial_jobs.item(name, needs, label=f"job {name}", cost=cost, **options)


def run(items, executor, *, notes=None, **options):
    notes = notes or Notes(executor)
    policy = RetryPolicy(tries=3, delay_seconds=0.001)
    options = {"policy": policy, "save": lambda _: None, "clock": Quick(), **options}
    return Scheduler(items, executor, watcher=notes, **options).run(), notes.lines


def lost(text="its worker died"):
    return JobFailedError(text, is_final=False, log=None)


# A trunk with a long branch and two short ones, and a job of its own.
TREE = [
    item("alone", cost=30),
    item("trunk", cost=10),
    item("short", "trunk", 5),
    item("long", "trunk", 25),
    item("leaf", "long", 1),
]


def test_the_longest_path_is_begun_first():
    # By hand: leaf 1, long 26, short 5, trunk 36, alone 30.
    assert longest_paths(TREE) == {"leaf": 1, "long": 26, "short": 5, "trunk": 36, "alone": 30}
    executor = FakeExecutor()
    outcome, _ = run(TREE, executor)
    assert executor.submitted == ["trunk", "alone", "long", "short", "leaf"]
    assert (outcome.num_executed, outcome.failures, outcome.blocked) == (5, (), ())


def test_a_branch_starts_as_soon_as_its_state_exists_and_no_slot_is_idle():
    executor = FakeExecutor(num_slots=2)
    _, lines = run(TREE, executor)
    assert executor.most_at_once == 2
    assert lines.index("done trunk") < lines.index("started long") < lines.index("done alone")


def test_among_jobs_of_unknown_cost_longer_chains_come_first():
    executor = FakeExecutor()
    run([item("c", cost=0), item("a", cost=0), item("b", "a", 0)], executor)
    assert executor.submitted == ["a", "c", "b"]


def test_ties_go_to_the_first_in_the_study():
    executor = FakeExecutor()
    run([item("z"), item("a"), item("m")], executor)
    assert executor.submitted == ["z", "a", "m"]


def test_transient_failures_are_retried_and_then_fail_with_dependents():
    executor = FakeExecutor(outcomes={"trunk": [lost(), lost(), lost("again")]})
    outcome, lines = run(TREE, executor)
    assert executor.submitted.count("trunk") == 3
    [failure] = outcome.failures
    assert (failure.id, failure.tries) == ("trunk", 3)
    assert str(failure) == "job trunk: again (tried 3 times)"
    assert [each.id for each in outcome.blocked] == ["short", "long", "leaf"]
    assert outcome.num_executed == 1
    assert "done alone" in lines
    assert lines.count("delayed trunk") == 2


def test_a_fault_of_the_file_system_is_one_of_the_job_that_met_it():
    faults = [OSError(errno.ESTALE, "Stale file handle"), False]

    def is_done():
        fault = faults.pop(0) if faults else False
        if fault:
            raise fault
        return fault

    executor = FakeExecutor()
    outcome, lines = run([item("a"), item("b", is_done=is_done)], executor)
    assert (outcome.num_executed, outcome.failures) == (2, ())
    assert "delayed b" in lines


def test_one_transient_failure_affects_no_other_job():
    outcome, _ = run(TREE, FakeExecutor(outcomes={"long": [lost()]}))
    assert (outcome.num_executed, outcome.failures) == (5, ())


def test_what_is_wrong_in_itself_is_tried_once():
    wrong = JobFailedError("the loss is not finite", is_final=True, log=None)
    executor = FakeExecutor(outcomes={"alone": [wrong]})
    outcome, _ = run(TREE, executor)
    assert executor.submitted.count("alone") == 1
    assert [failure.tries for failure in outcome.failures] == [1]
    assert outcome.num_executed == 4


def test_waits_grow_with_the_tries():
    policy = RetryPolicy(delay_seconds=5)
    assert [policy.delay(tries) for tries in (1, 2, 3)] == [5, 20, 80]


def test_a_job_of_another_process_is_left_to_it():
    there = []
    taken = LockHeldError("taken", owner="host a")
    executor = FakeExecutor(outcomes={"shared": [taken]})

    def is_done():
        return bool(there)

    class Other(FakeExecutor):
        def step(self):
            super().step()
            there.append(True)

    executor = Other(outcomes={"shared": [taken]})
    outcome, lines = run([item("shared", is_done=is_done), item("next", "shared")], executor)
    # Counted as nobody's here, and what needs it goes on.
    assert executor.submitted == ["shared", "next"]
    assert lines[:4] == ["started shared", "delayed shared", "elsewhere shared", "started next"]
    assert outcome.num_executed == 1


def test_a_job_that_another_process_finished_meanwhile_is_not_counted_as_done_here():
    executor = FakeExecutor(outcomes={"shared": [DoneElsewhereError("shared")]})
    outcome, lines = run([item("shared"), item("next", "shared")], executor)
    assert lines[:3] == ["started shared", "elsewhere shared", "started next"]
    assert outcome.num_executed == 1


def test_a_job_of_several_slots_is_not_overtaken_for_ever():
    items = [item("a", cost=3), item("b", cost=2), item("ranks", cost=2.5, slots=2), item("c")]
    executor = FakeExecutor(num_slots=2)
    _, lines = run(items, executor)
    # It waits for both slots, and what comes after it waits too.
    assert lines[:4] == ["started a", "done a", "started ranks", "done ranks"]
    assert executor.submitted == ["a", "ranks", "b", "c"]
    assert executor.most_at_once == 2  # b and c: all slots are free again
    with pytest.raises(ConfigError, match=r"ranks: needs 2 processes .* 1 slots"):
        run(items, FakeExecutor(num_slots=1))


def test_a_request_cancels():
    executor = FakeExecutor()
    seen = iter([[], [Request(kind="cancel")]])
    outcome, _ = run(TREE, executor, read_requests=lambda: next(seen))
    assert outcome.is_stopped
    assert len(executor.submitted) < 5


@pytest.mark.parametrize("jobs", [("trunk", "unknown"), ()])
def test_a_request_retries_failed_jobs(jobs):
    class Patient(FakeExecutor):
        waits = 0

        def step(self):
            # "alone" lasts until "trunk" has used its three new tries, which a request gives it.
            if [name for name, _ in self._open] == ["alone"] and self.submitted.count("trunk") < 6:
                self.waits += 1
                assert self.waits < 1_000_000
                return
            self._open.sort(key=lambda each: each[0] == "alone")
            super().step()

    executor = Patient(num_slots=2, outcomes={"trunk": [lost()] * 5})
    notes = Notes(executor)
    asked = []

    def ask():
        if "failed trunk" in notes.lines and not asked:
            asked.append(True)
            return [Request(kind="retry", jobs=jobs)]
        return []

    outcome, _ = run(TREE, executor, notes=notes, read_requests=ask)
    assert notes.lines.count("revived trunk") == 1
    assert (outcome.num_executed, outcome.failures, outcome.blocked) == (5, (), ())


def test_a_job_that_cannot_be_saved_is_retried_and_then_fails():
    """A full disk fails one job, and the study continues."""
    refusals = [OSError(28, "No space left on device"), None, None]

    def save(_job):
        if refusals and (error := refusals.pop(0)):
            raise error

    outcome, lines = run([item("a"), item("b")], FakeExecutor(), save=save)
    assert (outcome.num_executed, outcome.failures) == (2, ())
    assert lines.count("delayed a") == 1

    refusals[:] = [OSError(28, "No space left on device")] * 3
    outcome, _ = run([item("a")], FakeExecutor(), save=save)
    [failure] = outcome.failures
    assert (failure.tries, "No space left" in failure.error) == (3, True)


def test_tries_count_from_the_last_progress():
    ends = [lost(), lost(), RequeuedError("its block ended"), lost(), lost()]
    executor = FakeExecutor(outcomes={"alone": ends})
    outcome, _ = run(TREE, executor)
    assert executor.submitted.count("alone") == 6
    assert outcome.failures == ()
