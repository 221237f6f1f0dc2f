"""Workers: they report what fails, are replaced when they die, and end with their parent."""

import os
import signal
import subprocess
import sys

import pytest
from filelock import FileLock

from biphasic.errors import StudyError
from biphasic.study.engine import LocalEngine
from biphasic.study.jobs import FinetuneJob, GridRun, ScoredTask, TaskInput
from biphasic.tasks.protocol import FinetuneProtocol

PATIENCE = 120


def job(store, label="a job", *, runs=(), model="none"):
    task = {"name": "t", "folder": store / "none", "protocol": FinetuneProtocol()}
    return FinetuneJob(
        id="f" * 64,
        label=label,
        store=store,
        tokenizer=store / "none",
        encoder=store / model,
        state="s",
        training=TaskInput(**task),
        evaluations=(ScoredTask(**task, runs=runs),),
    )


RUNS = (GridRun(id="r" * 64, learning_rate=1e-4, seed=0),)


def failure(engine, submitted):
    with pytest.raises(StudyError) as failed:
        engine.submit(submitted).result(timeout=PATIENCE)
    return str(failed.value)


def test_a_worker_outlives_its_jobs_failures_and_is_replaced_when_it_dies(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with LocalEngine(
        num_workers=1, num_threads=1, log_folder=tmp_path / "logs", watch=lambda *_: None
    ) as engine:
        [worker] = engine._workers
        first = worker._process.pid
        # A foreseen error is the message; an unforeseen one has its traceback in the log.
        message = failure(engine, job(tmp_path, runs=RUNS))
        assert message.startswith(f"a job: {tmp_path / 'none'}: ")
        message = failure(engine, job(tmp_path / "file", "a bug"))
        assert message.startswith("a bug: NotADirectoryError")
        assert "Traceback" in (tmp_path / "logs/worker-0.log").read_text()
        # The same worker goes on after both.
        engine.submit(job(tmp_path)).result(timeout=PATIENCE)
        assert worker._process.pid == first

        # A job that waits for a lock is a job in the middle of which the worker can be killed.
        with FileLock(tmp_path / "locks" / f"{'f' * 64}.lock"):
            future = engine.submit(job(tmp_path, "killed"))
            os.kill(first, signal.SIGKILL)
            with pytest.raises(StudyError, match=r"killed: its worker died.*see .*worker-0\.log"):
                future.result(timeout=PATIENCE)
        engine.submit(job(tmp_path)).result(timeout=PATIENCE)
        assert worker._process.pid != first
        second = worker._process
    assert second.poll() is not None


def test_what_breaks_the_watcher_fails_the_job_and_not_the_study(tmp_path, monkeypatch):
    engine = LocalEngine(num_workers=1, num_threads=1, log_folder=tmp_path, watch=lambda *_: None)

    def broken(*_):
        raise RuntimeError("boom")

    with engine:
        monkeypatch.setattr(engine._workers[0], "run", broken)
        with pytest.raises(RuntimeError, match="boom"):
            engine.submit(job(tmp_path)).result(timeout=PATIENCE)


def test_a_worker_ends_when_its_input_ends(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "biphasic.study.worker", "1"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, b"")
