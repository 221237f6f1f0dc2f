"""Slots, jobs in the store, requests, and the record of a running study."""

import io
import json

import pytest
import torch
from rich.console import Console

from biphasic.errors import ConfigError, DataError, os_error_text
from biphasic.execution.job import (
    Failure,
    JobFailedError,
    Progress,
    Request,
    read_requests,
    write_request,
)
from biphasic.execution.slots import Slot, devices_environment, local_slots
from biphasic.locks import this_process
from biphasic.study.plan.plan import Plan, PlannedArm, Segment
from biphasic.study.run.run import Monitor, default_workers
from biphasic.study.status import read_progress
from biphasic.study.study import Study
from biphasic.training.lineage import Lineage
from tiny_study import GROUND, tiny_study
from trivial_jobs import item


def on_gpus(monkeypatch, count, visible=None):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


@pytest.mark.parametrize(("threads", "count"), [(1, 6), (2, 3), (8, 1)])
def test_cores_are_slots_where_there_is_no_gpu(monkeypatch, threads, count):
    on_gpus(monkeypatch, 0)
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    assert local_slots(num_threads=threads) == tuple(Slot(index) for index in range(count))
    assert len(local_slots(num_workers=11)) == 11
    assert devices_environment([Slot(0)]) == {}


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"num_threads": 10**6}, "threads: expected 1 to 48 on this machine, not 1000000"),
        ({"num_workers": 10**6}, "workers: expected 1 to 48"),
        ({"num_workers": 0}, "workers: expected 1 to 48"),
        ({"num_workers": 10, "num_threads": 10}, "10 workers with 10 threads each"),
    ],
)
def test_numbers_that_would_halt_the_machine_are_refused(monkeypatch, numbers, message):
    on_gpus(monkeypatch, 0)
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    with pytest.raises(ConfigError, match=message):
        local_slots(**numbers)


@pytest.mark.parametrize(
    ("has_gpu", "num_threads", "workers"),
    [(False, 1, 6), (False, 4, 1), (False, 8, 1), (True, 1, 1)],
)
def test_one_job_for_each_core_or_gpu(has_gpu, num_threads, workers, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    assert default_workers(num_threads) == workers


def test_gpus_are_slots_and_may_be_shared(monkeypatch):
    on_gpus(monkeypatch, 2)
    assert [slot.device for slot in local_slots()] == ["0", "1"]
    # One job on each before a second one on any.
    assert [slot.device for slot in local_slots(jobs_per_gpu=2)] == ["0", "1", "0", "1"]
    assert [slot.device for slot in local_slots(num_workers=1)] == ["0"]
    with pytest.raises(ConfigError, match=r"3 workers: .* 2 GPUs with 1 jobs"):
        local_slots(num_workers=3)
    assert devices_environment([Slot(1, "1")]) == {"CUDA_VISIBLE_DEVICES": "1"}
    both = [Slot(0, "0"), Slot(1, "1"), Slot(2, "0")]
    assert devices_environment(both) == {"CUDA_VISIBLE_DEVICES": "0,1"}


def test_gpus_that_were_given_to_this_process_keep_their_names(monkeypatch):
    on_gpus(monkeypatch, 2, visible="GPU-b,5")
    assert [slot.device for slot in local_slots()] == ["GPU-b", "5"]


def test_requests_are_read_once(tmp_path):
    assert read_requests(tmp_path) == []
    write_request(tmp_path, Request(kind="retry", jobs=("a",)))
    write_request(tmp_path, Request(kind="retry"))
    found = read_requests(tmp_path)
    assert sorted((request.kind, request.jobs) for request in found) == [
        ("retry", ()),
        ("retry", ("a",)),
    ]
    assert read_requests(tmp_path) == []
    write_request(tmp_path, Request(kind="cancel"))
    (tmp_path / "requests" / "other.json").write_text('{"kind": "explode"}')
    assert read_requests(tmp_path) == [Request(kind="cancel")]
    assert read_requests(tmp_path) == []
    # Of a file that cannot be read, as another user's may be, nothing follows.
    (tmp_path / "requests" / "unread.json").mkdir()
    write_request(tmp_path, Request(kind="cancel"))
    assert read_requests(tmp_path) == [Request(kind="cancel")]


def watched(items, folder, *, num_segments=1, num_slots=1):
    """Return a monitor of these items, out of as many segments, and what it prints."""
    study = Study(tiny_study({"name": "a"}, name=folder.name), folder.parent)
    arm = PlannedArm(study.config.arms[0], Lineage(study.recipes["a"], GROUND), "", None, None)
    segments = tuple(Segment(f"s{i}", 0, 1, None, arm) for i in range(num_segments))
    plan = Plan(study, arms=(), points=(), segments=segments)
    printed = io.StringIO()
    console = Console(file=printed, width=120)
    return Monitor(items, plan, num_slots=num_slots, console=console), printed


def test_the_record_has_the_result_of_each_job(tmp_path, now):
    trunk, branch = item("trunk", cost=10), item("branch", cost=30, needs="trunk")
    other, leaf = item("other", cost=20, slots=2), item("leaf", needs="other")
    items = [trunk, branch, other, leaf]
    monitor, printed = watched(items, tmp_path, num_segments=6, num_slots=2)
    with monitor:
        record = read_progress(tmp_path)
        # Of six jobs two were done before.
        assert record.counts.model_dump() == {
            "done": 2, "running": 0, "waiting": 4, "failed": 0, "blocked": 0
        }  # fmt: skip
        assert (record.device_seconds_left, record.is_over) == (None, False)

        monitor.started(trunk)
        monitor.progress("trunk", Progress(1, 8, "loss 6.1"))
        monitor.progress("nobody", Progress(1, 2, ""))
        now[0] += 5.0
        monitor.tick()
        [running] = read_progress(tmp_path).running
        assert (running.label, running.done, running.total, running.text) == (
            "trunk", 1, 8, "loss 6.1"
        )  # fmt: skip
        monitor.ended(trunk, None, elsewhere=False)
        monitor.started(other)
        now[0] += 5.0
        error = JobFailedError("boom\nand more", is_final=False, log=tmp_path / "x.log")
        monitor.delayed(other, error)
        monitor.started(other)
        failure = Failure("other", "other", "boom\nand more", 2, tmp_path / "x.log")
        monitor.ended(other, failure, elsewhere=False)
    record = read_progress(tmp_path)
    assert record.counts.model_dump() == {
        "done": 3, "running": 0, "waiting": 1, "failed": 1, "blocked": 1
    }  # fmt: skip
    [failure] = record.failures
    assert (failure.error, failure.tries, failure.log) == ("boom", 2, str(tmp_path / "x.log"))
    # 10 units of work took 5 s on one slot; 30 + 20 + 10 are left. The 5 s on two slots of the
    # job that failed were spent, but say nothing of how long such jobs take.
    assert record.device_seconds_spent == pytest.approx(5.0 + 2 * 5.0)
    assert record.device_seconds_left == pytest.approx(30.0)
    assert record.seconds_left == pytest.approx(15.0)
    assert record.is_over
    assert (record.runner.host, record.runner.pid) == this_process()
    assert "will retry: other: boom" in printed.getvalue()


def test_a_job_without_a_step_yet_has_no_total_and_no_expected_end(tmp_path, now):
    monitor, _ = watched([item("a")], tmp_path)
    with monitor:
        monitor.started(item("a"))
        monitor.progress("a", Progress(0, 0, "held-out CLM loss"))
        now[0] += 5.0
        monitor.tick()
        record = read_progress(tmp_path)
    [running] = record.running
    assert (running.total, running.text) == (None, "held-out CLM loss")
    assert record.seconds_left is None


def test_time_in_the_queue_of_a_cluster_does_not_count(tmp_path, now):
    monitor, _ = watched([item("a")], tmp_path)
    with monitor:
        monitor.started(item("a"))
        now[0] += 3600.0
        for done in (1, 2):
            monitor.progress("a", Progress(done, 8, "loss 6.1", place="on n1, block 0"))
            now[0] += 5.0
        monitor.tick()
        record = read_progress(tmp_path)
        assert record.device_seconds_spent == 10.0
        assert record.running[0].place == "on n1, block 0"


def test_a_damaged_record_is_named(tmp_path):
    assert read_progress(tmp_path) is None
    (tmp_path / "progress.json").write_text(json.dumps({"format": "biphasic.progress/0"}))
    with pytest.raises(DataError, match=r"progress\.json: damaged"):
        read_progress(tmp_path)


def test_a_record_that_cannot_be_written_ends_nothing(tmp_path):
    (tmp_path / "progress.json").mkdir()
    only = item("only")
    monitor, printed = watched([only], tmp_path)
    with monitor:
        monitor.started(only)
        monitor.ended(only, None, elsewhere=False)
    text = printed.getvalue()
    assert text.count("cannot write progress.json: Is a directory") == 1
    assert "[1/1] done: only" in text


def test_system_errors_have_a_path_and_a_remedy():
    denied = os_error_text(OSError(13, "Permission denied", "/a/b"))
    assert denied == (
        "/a/b: Permission denied; give this user permission ('chmod', 'chgrp'), or run as the owner"
    )
    full = os_error_text(OSError(28, "No space left on device", "/a/b"))
    assert full.startswith("/a/b: No space left on device; free space")
    assert os_error_text(OSError("odd")) == "odd"
    cut = os_error_text(OSError("80 requested and 16 written"))
    assert cut.startswith("cannot be written whole (80 requested and 16 written); free space")
