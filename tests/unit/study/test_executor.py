"""Workers: they report what fails, are replaced when they die, and end with their parent."""

import io
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from biphasic.errors import (
    ConfigError,
    DataError,
    DoneElsewhereError,
    LockHeldError,
    StudyError,
)
from biphasic.execution.executor import Work
from biphasic.execution.job import JobFailedError
from biphasic.execution.local import WorkerPool
from biphasic.execution.slots import Slot
from biphasic.locks import lock_work
from biphasic.study.run.jobs import WORKER, load_job
from trivial_jobs import RUNS, save_trivial

pytestmark = pytest.mark.slow

PATIENCE = 120
ONE = (Slot(0),)


def executor_on(store, *, slots=ONE, load=load_job):
    work = Work(
        store,
        store,
        load_job=load,
        worker=WORKER,
        processes=1,
        watch=lambda *_: None,
        say=print,
    )
    return WorkerPool(work, {slot: work.process(f"worker-{slot.index}") for slot in slots})


def failure(executor, job_id):
    with pytest.raises(JobFailedError) as failed:
        executor.submit(job_id).result(timeout=PATIENCE)
    return failed.value


@pytest.mark.usefixtures("warm")
def test_a_worker_outlives_its_jobs_failures_and_is_replaced_when_it_dies(tmp_path):
    works = save_trivial(tmp_path, "a")
    with executor_on(tmp_path) as executor:
        [worker] = executor._workers.values()
        # A foreseen error is the message, and trying again is no use.
        failed = failure(executor, save_trivial(tmp_path, "b", runs=RUNS))
        assert str(failed).startswith(f"{tmp_path / 'none'}: ")
        assert (failed.is_final, failed.log) == (True, None)
        first = worker._process.pid
        # An unforeseen one has its traceback in the job's own log.
        (tmp_path / "none").mkdir()
        (tmp_path / "none/manifest.json").symlink_to("/proc/self/mem")  # reading it fails
        failed = failure(executor, save_trivial(tmp_path, "c", runs=RUNS))
        assert str(failed) == "Input/output error"
        assert not failed.is_final
        assert "Traceback" in failed.log.read_text()
        # The same worker goes on after both, and jobs that say nothing leave no log.
        executor.submit(works).result(timeout=PATIENCE)
        assert worker._process.pid == first
        assert not (tmp_path / "logs" / f"{works}.log").exists()

        os.kill(first, signal.SIGSTOP)
        future = executor.submit(works)
        os.kill(first, signal.SIGKILL)
        with pytest.raises(JobFailedError, match=r"its worker died \(.*\)$") as died:
            future.result(timeout=PATIENCE)
        assert not died.value.is_final
        executor.submit(works).result(timeout=PATIENCE)
        assert worker._process.pid != first
        second = worker._process
    assert second.poll() is not None


@pytest.mark.usefixtures("warm")
def test_a_job_that_another_process_does_is_not_done_twice(tmp_path):
    job_id = save_trivial(tmp_path, "a", runs=RUNS)
    with executor_on(tmp_path) as executor, lock_work(tmp_path, job_id):
        with pytest.raises(LockHeldError, match="another process holds it") as taken:
            executor.submit(job_id).result(timeout=PATIENCE)
        assert f"process {os.getpid()}" in taken.value.owner
        # It was not waited for: other jobs have the worker.
        executor.submit(save_trivial(tmp_path, "b")).result(timeout=PATIENCE)


@pytest.mark.usefixtures("warm")
def test_a_job_that_another_process_finished_before_the_worker_locked_it_is_not_its_own(tmp_path):
    result = tmp_path / "finetunes" / RUNS[0].id
    result.mkdir(parents=True)
    (result / "manifest.json").touch()
    with executor_on(tmp_path) as executor, pytest.raises(DoneElsewhereError):
        executor.submit(save_trivial(tmp_path, "a", runs=RUNS)).result(timeout=PATIENCE)


def test_what_breaks_the_watcher_fails_the_job_and_not_the_study(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("boom")

    with executor_on(tmp_path) as executor:
        monkeypatch.setattr(executor._workers[Slot(0)], "run", broken)
        with pytest.raises(RuntimeError, match="boom"):
            executor.submit(save_trivial(tmp_path, "a")).result(timeout=PATIENCE)


def test_jobs_that_the_store_does_not_have_are_refused(tmp_path):
    with executor_on(tmp_path) as executor:
        with pytest.raises(DataError, match="no such job; 'biphasic study jobs FILE'"):
            executor.submit("0" * 64)
        with pytest.raises(ConfigError, match="is not a job identity"):
            executor.submit("../../etc/passwd")
        (tmp_path / "jobs").mkdir()
        (tmp_path / "jobs/old.json").write_text('{"kind": "finetune", "speed": 3}')
        with pytest.raises(DataError, match="not a job of this version"):
            executor.submit("old")


def test_a_job_of_several_slots_waits_for_them_and_is_not_overtaken(tmp_path, monkeypatch):
    """Asked without workers: what is given to which slots, in which order."""
    order = []
    needed = {"one": 1, "both": 2, "last": 1}

    def load(_store, job_id):
        return type("J", (), {"num_slots": needed[job_id]})

    first, second = Slot(0, "gpu0"), Slot(1, "gpu1")
    executor = executor_on(tmp_path, slots=(first, second), load=load)
    for slot, worker in executor._workers.items():
        monkeypatch.setattr(
            worker,
            "run",
            lambda job, _, *, environment, slot=slot: order.append(
                (job, slot.index, environment["CUDA_VISIBLE_DEVICES"])
            ),
        )
    with executor._lock:  # both slots are taken, as by a job that runs
        executor._free = []
    futures = [executor.submit(name) for name in ("both", "one", "last")]
    assert order == []
    executor._free = [first]
    executor._dispatch()
    assert order == []  # "one" would fit, but "both" came first
    executor._free = [first, second]
    executor._dispatch()
    for future in futures:
        future.result(timeout=PATIENCE)
    assert order[0] == ("both", 0, "gpu0,gpu1")
    assert sorted(job for job, _, _ in order[1:]) == ["last", "one"]
    with pytest.raises(StudyError, match="needs 2 slots; there are 1"):
        executor_on(tmp_path, load=load).submit("both")
    executor._threads.shutdown()


def test_a_worker_that_is_just_starting_is_asked_to_stop_too(tmp_path, monkeypatch):
    pipes = {"stdin": io.BytesIO(), "stdout": io.BytesIO()}
    process = type("Process", (), {**pipes, "poll": lambda _: None})()
    starting, go_on = threading.Event(), threading.Event()

    def start(*_, **__):
        starting.set()
        go_on.wait(PATIENCE)
        return process

    [worker] = executor_on(tmp_path)._workers.values()
    monkeypatch.setattr("biphasic.child.subprocess.Popen", start)
    with ThreadPoolExecutor(2) as threads:
        ready = threads.submit(worker.started)
        assert starting.wait(PATIENCE)
        asked = threads.submit(worker.ask_to_stop)
        with pytest.raises(TimeoutError):  # it waits for the process that it is to tell
            asked.result(timeout=0.2)
        go_on.set()
        assert ready.result(timeout=PATIENCE) == (process.stdin, process.stdout)
        asked.result(timeout=PATIENCE)
    assert process.stdin.closed


@pytest.mark.usefixtures("warm")
def test_a_worker_ends_when_its_input_ends(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", WORKER, str(tmp_path), "1"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, b"")
