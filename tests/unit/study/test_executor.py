"""Workers: they report what fails, are replaced when they die, and end with their parent."""

import io
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from queue import SimpleQueue
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from biphasic.errors import ConfigError, DataError, DoneElsewhereError, LockHeldError, StudyError
from biphasic.execution import ranks
from biphasic.execution.executor import Work, WorkerPool
from biphasic.execution.job import JobFailedError
from biphasic.execution.slots import Slot
from biphasic.execution.worker import WorkerProcess
from biphasic.locks import lock_work
from biphasic.study.run.jobs import WORKER, load_job
from mini_study import children
from trivial_jobs import RUNS, save_trivial

pytestmark = pytest.mark.slow

PATIENCE = 120
ONE = (Slot(0),)


def executor_on(store, *, slots=ONE, load=load_job, run=None):
    """Return an executor on processes, or on what only calls `run`."""
    work = Work(
        store,
        store,
        load_job=load,
        worker=WORKER,
        processes=1,
        watch=lambda *_: None,
        say=print,
    )
    if run is None:
        return WorkerPool(work, {slot: work.process(f"worker-{slot.index}") for slot in slots})
    return WorkerPool(work, {slot: Mock(run=run) for slot in slots})


def failure(executor, job_id):
    with pytest.raises(JobFailedError) as failed:
        executor.submit(job_id).result(timeout=PATIENCE)
    return failed.value


@pytest.mark.usefixtures("warm")
def test_a_worker_outlives_its_jobs_failures_and_is_replaced_when_it_dies(tmp_path):
    works = save_trivial(tmp_path, "a")
    with executor_on(tmp_path) as executor:
        # A foreseen error is the message, and trying again is no use.
        failed = failure(executor, save_trivial(tmp_path, "b", runs=RUNS))
        assert str(failed).startswith(f"{tmp_path / 'none'}: ")
        assert (failed.is_final, failed.log) == (True, None)
        [first] = children(os.getpid())
        # An unforeseen one has its traceback in the job's own log.
        (tmp_path / "none").mkdir()
        (tmp_path / "none/manifest.json").symlink_to("/proc/self/mem")  # reading it fails
        failed = failure(executor, save_trivial(tmp_path, "c", runs=RUNS))
        assert str(failed) == f"{tmp_path / 'none/manifest.json'}: Input/output error"
        assert not failed.is_final
        assert "Traceback" in failed.log.read_text()
        # The same worker goes on after both, and jobs that say nothing leave no log.
        executor.submit(works).result(timeout=PATIENCE)
        assert children(os.getpid()) == [first]
        assert not (tmp_path / "logs" / f"{works}.log").exists()

        os.kill(first, signal.SIGSTOP)
        future = executor.submit(works)
        os.kill(first, signal.SIGKILL)
        with pytest.raises(JobFailedError, match=r"its worker died \(.*\)$") as died:
            future.result(timeout=PATIENCE)
        assert not died.value.is_final
        executor.submit(works).result(timeout=PATIENCE)
        [second] = children(os.getpid())
        assert second != first
    assert children(os.getpid()) == []


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


def test_what_breaks_the_watcher_fails_the_job_and_not_the_study(tmp_path):
    broken = Mock(side_effect=RuntimeError("boom"))
    with executor_on(tmp_path, run=broken) as executor, pytest.raises(RuntimeError, match="boom"):
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


def test_a_job_of_several_slots_waits_for_them_and_is_not_overtaken(tmp_path):
    """Asked without workers: what is given to which slots, in which order."""
    needed = {"first": 1, "second": 1, "both": 2, "one": 1, "last": 1}
    order, ends = [], {name: threading.Event() for name in needed}

    def load(_store, job_id):
        return SimpleNamespace(num_slots=needed[job_id])

    def run(job_id, _watch, *, environment):
        order.append((job_id, environment["CUDA_VISIBLE_DEVICES"]))
        assert ends[job_id].wait(PATIENCE)

    slots = (Slot(0, "gpu0"), Slot(1, "gpu1"))
    with executor_on(tmp_path, slots=slots, load=load, run=run) as executor:
        futures = {name: executor.submit(name) for name in needed}
        ends["first"].set()
        futures["first"].result(timeout=PATIENCE)
        # "one" would fit, but "both" came first.
        assert not wait(list(futures.values())[3:], timeout=0.1).done
        for name in needed:
            ends[name].set()
        assert not wait(futures.values(), timeout=PATIENCE).not_done
    assert sorted(order[:2]) == [("first", "gpu0"), ("second", "gpu1")]
    assert order[2] == ("both", "gpu0,gpu1")
    assert sorted(job for job, _ in order[3:]) == ["last", "one"]
    with pytest.raises(StudyError, match="needs 2 slots; there are 1"):
        executor_on(tmp_path, load=load).submit("both")


def test_a_worker_that_is_just_starting_is_asked_to_stop_too(tmp_path, monkeypatch):
    pipes = {"stdin": io.BytesIO(), "stdout": io.BytesIO()}
    process = type("Process", (), {**pipes, "poll": lambda _: None})()
    starting, go_on = threading.Event(), threading.Event()

    def start(*_, **__):
        starting.set()
        go_on.wait(PATIENCE)
        return process

    worker = WorkerProcess(
        tmp_path, module=WORKER, num_threads=1, log_folder=tmp_path, name="w", environment={}
    )
    monkeypatch.setattr("subprocess.Popen", start)
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


def test_no_file_of_the_working_folder_stands_for_a_module(tmp_path, monkeypatch):
    (tmp_path / "tokenize.py").write_text("open('ran', 'w')")  # torch imports Python's own
    monkeypatch.chdir(tmp_path)
    worker = WorkerProcess(
        tmp_path, module="tokenize", num_threads=1, log_folder=tmp_path, name="w", environment={}
    )
    with pytest.raises(JobFailedError, match="its worker died"):  # it takes no jobs
        worker.run("a", print, environment={})
    worker.close()
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def noisy(tmp_path, monkeypatch):
    """A worker that prints more than its events; 'damaged' gives no JSON, 'killed' half a line."""
    (tmp_path / "noisy.py").write_text(
        "import json, sys\n"
        "from pathlib import Path\n"
        "print('a launcher says hello\\nand more', end='', flush=True)\n"
        "for line in sys.stdin:\n"
        "    done = Path(sys.argv[1], 'done')\n"
        "    if json.loads(line)['job'] == 'damaged':\n"
        "        print('{\"event\": finis', flush=True)\n"
        "    if json.loads(line)['job'] == 'killed':\n"
        '        print(\'{"event": "failed", "error": "a\', end=\'\', flush=True)\n'
        "        break\n"
        "    done.write_text(json.loads(line)['job'])\n"
        "    print(json.dumps({'event': 'finished'}), flush=True)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    worker = WorkerProcess(
        tmp_path, module="noisy", num_threads=1, log_folder=tmp_path, name="w", environment={}
    )
    yield worker
    worker.kill()
    worker.close()


def test_what_launchers_and_imports_print_is_in_the_log(tmp_path, noisy):
    noisy.run("first", lambda _: None, environment={})
    assert (tmp_path / "done").read_text() == "first"
    assert (tmp_path / "w.log").read_text() == "a launcher says hello\nand more"


def test_a_worker_with_damaged_output_does_not_end_the_next_job(tmp_path, noisy):
    with pytest.raises(StudyError, match="wrote a damaged message"):
        noisy.run("damaged", lambda _: None, environment={})
    noisy.run("second", lambda _: None, environment={})
    assert (tmp_path / "done").read_text() == "second"


def test_a_worker_that_is_killed_while_it_writes_has_died(tmp_path, noisy):
    with pytest.raises(JobFailedError, match="its worker died"):
        noisy.run("killed", lambda _: None, environment={})
    noisy.run("second", lambda _: None, environment={})
    assert (tmp_path / "done").read_text() == "second"


def test_events_of_ranks_are_told_from_what_libraries_print(capsys):
    events = SimpleQueue()
    lines = [b"{'a': 'dict'}\n", b'caf\xe9{"event": "failed", "rank": 1}\n']
    ranks._read(SimpleNamespace(stdout=lines), events)
    assert [events.get(), events.get()] == [{"event": "failed", "rank": 1}, None]
    assert capsys.readouterr().err == "{'a': 'dict'}\ncaf\ufffd"


def test_a_damaged_event_of_a_rank_does_not_end_the_others(capsys):
    events = SimpleQueue()
    damaged = b'{"event": "failed", "error": "out {"event": "heartbeat", "rank": 1}\n'
    lines = [damaged, b' of memory"}\n', b'{"event": "finished"}\n']
    ranks._read(SimpleNamespace(stdout=lines), events)
    assert [events.get(), events.get()] == [{"event": "finished"}, None]
    assert capsys.readouterr().err == damaged.decode() + ' of memory"}\n'


@pytest.mark.usefixtures("warm")
def test_the_mode_of_a_log_is_that_of_the_umask(tmp_path):
    (tmp_path / "none").mkdir()
    (tmp_path / "none/manifest.json").symlink_to("/proc/self/mem")  # reading it fails
    before = os.umask(0o002)
    try:
        with executor_on(tmp_path) as executor:
            log = failure(executor, save_trivial(tmp_path, "a", runs=RUNS)).log
    finally:
        os.umask(before)
    assert oct(log.stat().st_mode & 0o777) == "0o664"
