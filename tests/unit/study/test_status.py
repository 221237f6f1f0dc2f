"""How far a study is: by its runner, by the store, in words, as JSON; and asking it to stop."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from biphasic.errors import ConfigError, DataError
from biphasic.execution.job import read_requests
from biphasic.locks import LEASE_SECONDS, LOCK, find_owner, hold, this_process
from biphasic.study import status as status_module
from biphasic.study.find import find_study, study_status
from biphasic.study.maintenance import verify_study
from biphasic.study.plan.cost import job_costs
from biphasic.study.plan.summary import summarise_plan
from biphasic.study.run.record import write_study_report
from biphasic.study.run.run import missing_work
from biphasic.study.status import (
    ArmProgress,
    FailedJob,
    JobCounts,
    ProgressRecord,
    RunnerRecord,
    RunningJob,
    cancel_study,
    retry_jobs,
    status_lines,
    write_progress,
)
from biphasic.study.study import Study
from small_root import fake_result, fake_state, prepare, study_of, write_texts
from tiny_study import clm, mlm

NOON = datetime(2026, 5, 4, 12, 0, 0, tzinfo=UTC)


@pytest.fixture
def folder(root) -> Path:
    return root / "one"


def record(**changes):
    """A progress record that this process could have written."""
    host, pid = this_process()
    values = {
        "study": "one",
        "runner": RunnerRecord(host=host, pid=pid, since=NOON.isoformat()),
        "updated": NOON.isoformat(),
        "is_over": False,
        "counts": JobCounts(done=1, running=1, waiting=0, failed=1, blocked=1),
        "running": (
            RunningJob(
                id="r" * 64,
                label="b 4-8",
                kind="train",
                done=3,
                total=4,
                text="loss 1.234",
                place="on n1, block 0",
                started=NOON.isoformat(),
            ),
        ),
        "failures": (failed("a on first", "f" * 64),),
        "by_arm": {"a": ArmProgress(done=1, total=2), "b": ArmProgress(done=1, total=3)},
        "device_seconds_spent": 3600.0,
        "device_seconds_left": 1800.0,
        "seconds_left": 90.0,
    }
    return ProgressRecord(**{**values, **changes})


def failed(label, identity, **changes):
    values = {"error": "out of memory", "tries": 3, "log": "logs/f.log"}
    return FailedJob(id=identity, label=label, **{**values, **changes})


def text_of(status):
    return "\n".join(status_lines(status, now=NOON))


def running(folder):
    return hold(folder / LOCK, remedy="wait")


def half_done(root):
    """Take the end of arm b with its results away, and one of the two results of arm a."""
    study = prepare(Study.saved(root / "one").config, root)
    a, b = study.plan.groups
    store = root / "store"
    shutil.rmtree(store / "states" / b.state)
    for name in (*b.run_ids(), next(a.run_ids())):
        shutil.rmtree(store / "finetunes" / name)
    return a, b


def test_a_finished_study_is_reported_as_finished(folder):
    status = study_status(folder)
    assert (status.phase, status.runner) == ("finished", None)
    # Two segments, since b begins with a; a group for each end.
    assert status.counts == JobCounts(done=4, running=0, waiting=0, failed=0, blocked=0)
    assert status.by_arm == {"a": ArmProgress(done=2, total=2), "b": ArmProgress(done=3, total=3)}
    # 2 x 10 s of training, 2 x 2 x 2 s of fine-tuning.
    assert status.device_seconds_spent == pytest.approx(28.0)
    assert status.device_seconds_left == 0.0
    assert text_of(status).startswith("one: finished\n  4 done, 0 running, 0 waiting, of 4 jobs\n")


def test_arms_that_were_trained_apart_need_no_state_where_they_branch(root, tmp_path, make_task):
    arms = [{"name": "a", "phases": [clm(4)]}, {"name": "b", "phases": [clm(2), mlm(2)]}]
    config = study_of(write_texts(tmp_path), make_task(tmp_path / "task"), name="two", arms=arms)
    Study(config, root).save()
    study = prepare(config, root)
    _, *ends = study.plan.segments
    for segment in ends:
        fake_state(root / "store", segment.id)  # without a parent, as a study of its own leaves it
    for group in study.plan.groups:
        for name in group.run_ids():
            fake_result(root / "store", name, state=group.state)
    assert missing_work(study.plan, study.paths) == []
    summary = summarise_plan(study.plan)
    assert (summary.left.steps, summary.done.steps) == (0, summary.shared.steps)
    status = study_status(root / "two")
    assert (status.phase, status.notes, status.device_seconds_left) == ("finished", (), 0.0)
    assert verify_study(root / "two", say=print).missing["states"] == 0


def test_work_left_of_a_run_is_of_trainings_that_are_missing_and_due(root, tmp_path, make_task):
    grid = {"seeds": [0, 1], "learning_rates": [1e-4, 1e-3], "extend": 2}
    changes = {"name": "wide", "finetuning": {**grid, "protocol": {"max_seqlen": 32}}}
    config = study_of(write_texts(tmp_path), make_task(tmp_path / "task"), **changes)
    study = prepare(config, root)
    for due in (2, 1):  # study one has two of the four
        costs = job_costs(study.plan)
        for group in study.plan.groups:
            assert costs[group.id].steps == 12 * group.training.num_steps  # 8 beyond the grid
            [cost] = [w.cost for w in missing_work(study.plan, study.paths) if w.id == group.id]
            assert cost == pytest.approx(costs[group.id].flops * due / 12)
            fake_result(root / "store", group.missing_runs()[0], state=group.state)


def test_without_a_runner_the_status_comes_from_the_store(root, folder):
    half_done(root)
    status = study_status(folder)
    assert status.phase == "unfinished"
    assert status.counts == JobCounts(done=1, running=0, waiting=3, failed=0, blocked=0)
    assert status.by_arm == {"a": ArmProgress(done=1, total=2), "b": ArmProgress(done=1, total=3)}
    assert status.device_seconds_spent == pytest.approx(10.0 + 2.0)
    # Four steps as the first four; three fine-tunings as the first.
    assert status.device_seconds_left == pytest.approx(10.0 + 3 * 2.0)
    assert status.eta is None


def test_jobs_without_an_example_are_as_fast_as_others(root, folder):
    for result in (root / "store/finetunes").iterdir():
        shutil.rmtree(result)
    status = study_status(folder)
    plan = prepare(Study.saved(folder).config, root).plan
    costs = job_costs(plan)
    trained = sum(costs[segment.id].flops or 0 for segment in plan.segments)
    left = 20.0 * sum(costs[group.id].flops or 0 for group in plan.groups) / trained
    assert status.device_seconds_spent == 20.0
    assert status.device_seconds_left == pytest.approx(left)


def test_time_left_is_not_guessed_without_an_example(root, folder):
    for kind in ("states", "finetunes"):
        for path in (root / "store" / kind).iterdir():
            shutil.rmtree(path)
    status = study_status(folder)
    assert (status.device_seconds_spent, status.device_seconds_left) == (0.0, None)
    assert "unknown left" in text_of(status)


def test_failures_of_the_last_run_stay_until_the_job_is_done(root, folder):
    a, b = half_done(root)
    lost = failed("b 4-8", b.state)
    done = failed("a 0-4", a.state)
    unknown = failed("c 0-4", "0" * 64)
    write_progress(folder, record(is_over=True, running=(), failures=(lost, done, unknown)))
    status = study_status(folder)
    assert status.failures == (lost,)
    # The group of b needs it; that of a does not.
    assert status.counts == JobCounts(done=1, running=0, waiting=1, failed=1, blocked=1)
    text = text_of(status)
    assert "1 waiting, 1 failed, 1 blocked by a failed job, of 4 jobs" in text
    assert "  b 4-8: out of memory (tried 3 times)\n" in text
    assert "log logs/f.log" in text


def test_the_status_of_a_running_study_comes_from_its_runner(folder):
    write_progress(folder, record())
    with running(folder):
        status = study_status(folder)
    assert status.phase == "running"
    assert status.runner is not None
    assert platform.node() in status.runner
    assert status.counts == JobCounts(done=1, running=1, waiting=0, failed=1, blocked=1)
    assert status.eta == "2026-05-04T12:01:30+00:00"
    text = text_of(status)
    assert "b 4-8            3/4   0:00:00  loss 1.234  on n1, block 0" in text
    assert "a on first: out of memory (tried 3 times)" in text
    assert "1 spent in this run, about 0.5 left; end expected at 2026-05-0" in text
    assert "a  ##########..........  1/2" in text


def test_a_runner_that_has_not_counted_yet_is_preparing(folder):
    with running(folder):
        # There is no record, or one of an earlier run.
        assert study_status(folder).phase == "preparing"
        earlier = RunnerRecord(host=this_process()[0], pid=1, since=NOON.isoformat())
        write_progress(folder, record(runner=earlier))
        status = study_status(folder)
    assert (status.phase, status.counts) == ("preparing", None)
    assert "building text and tasks" in text_of(status)


def test_the_report_is_the_last_thing(folder):
    write_progress(folder, record(is_over=True, running=()))
    with running(folder):
        status = study_status(folder)
    assert (status.phase, status.eta) == ("running", None)
    assert "the report is being written" in text_of(status)


def locked_elsewhere(folder, *, silent_for):
    """Leave the lock of a process on another machine, silent for some seconds."""
    with hold(folder / LOCK, remedy=""):
        text = (folder / LOCK).read_text()
    (folder / LOCK).write_text(re.sub("(?m)^host=.*$", "host=far-away", text))
    heartbeat = time.time() - silent_for
    os.utime(folder / LOCK, (heartbeat, heartbeat))


@pytest.mark.parametrize(
    ("silence", "phase", "message"),
    [
        (0, "preparing", "host far-away"),
        (120, "preparing", "no heartbeat for 12"),
        (LEASE_SECONDS + 60, "finished", "no heartbeat for 6 minutes"),
    ],
)
def test_a_missing_heartbeat_of_a_remote_runner_is_reported(folder, silence, phase, message):
    locked_elsewhere(folder, silent_for=silence)
    status = study_status(folder)
    assert status.phase == phase
    assert message in text_of(status)


def test_a_study_that_was_never_run_is_planned(folder, tmp_path):
    config = Study.saved(folder).config
    with pytest.raises(DataError, match="no study was run here"):
        study_status(tmp_path / "new/one")
    (tmp_path / "new/store").mkdir(parents=True)
    status = study_status(tmp_path / "new/one", config)
    assert status.phase == "unfinished"
    assert status.counts == JobCounts(done=0, running=0, waiting=4, failed=0, blocked=0)
    assert "assumed: corpus" in text_of(status)


def test_a_changed_study_file_is_reported(folder):
    config = Study.saved(folder).config
    assert study_status(folder, config).notes == ()
    changed = config.model_copy(update={"title": "Another"})
    assert "has changed since the last run" in study_status(folder, changed).notes[0]


def test_studies_are_looked_up_by_file_folder_and_name(root, folder, tmp_path, monkeypatch):
    assert find_study("one", root) == (folder, None)
    assert find_study(str(folder), tmp_path) == (folder, None)
    assert find_study(None, root) == (folder, None)
    with pytest.raises(DataError, match=rf"{root}.*did you mean 'one'\?"):
        find_study("ono", root)
    with pytest.raises(DataError, match="no studies"):
        find_study(None, tmp_path / "nowhere")
    shutil.copytree(folder, root / "two")
    with pytest.raises(DataError, match="name one of one, two"):
        find_study(None, root)


class Runner:
    """Runs a study in a thread, as far as others can tell: holds its lock, reads requests."""

    def __init__(self, folder: Path, *, forgets: bool = False) -> None:
        self.heard: list[tuple[str, ...]] = []
        self._folder, self._forgets = folder, forgets
        self._began = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._began.wait(30)

    def _run(self) -> None:
        with running(self._folder):
            self._began.set()
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                if self._forgets and any((self._folder / "requests").glob("*.json")):
                    # As one that has just begun.
                    read_requests(self._folder)
                    self._forgets = False
                for request in read_requests(self._folder):
                    if request.kind == "cancel":
                        return
                    self.heard.append(request.jobs)
                time.sleep(0.01)

    def ended(self) -> bool:
        self._thread.join(30)
        return not self._thread.is_alive()


@pytest.fixture
def quick(monkeypatch):
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(min(seconds, 0.01)))
    monkeypatch.setattr(status_module, "_AGAIN_SECONDS", 0.05)


@pytest.mark.parametrize("forgets", [False, True])
def test_cancelling_waits_until_the_runner_has_ended(folder, quick, forgets):
    runner, messages = Runner(folder, forgets=forgets), []
    assert cancel_study(folder, say=messages.append)
    assert runner.ended()
    assert find_owner(folder / LOCK) is None
    assert "sent stop request to host" in messages[0]
    assert "has stopped" in messages[1]


def test_cancelling_a_study_that_is_not_running_is_reported(folder):
    messages = []
    assert not cancel_study(folder, say=messages.append)
    assert messages == ["one is not running"]
    assert not (folder / "requests").exists()


def test_cancelling_does_not_wait_for_a_dead_remote_runner(folder, now, monkeypatch):
    locked_elsewhere(folder, silent_for=0)

    def sleep(_: float) -> None:
        now[0] += 60

    monkeypatch.setattr(time, "sleep", sleep)
    messages = []
    assert cancel_study(folder, say=messages.append)
    assert "no heartbeat" in messages[1]
    assert now[0] >= 100 + LEASE_SECONDS


def test_cancelling_waits_for_a_remote_runner_as_long_as_it_sends_heartbeats(
    folder, now, monkeypatch
):
    locked_elsewhere(folder, silent_for=0)

    def sleep(_: float) -> None:
        now[0] += 60
        heartbeat = time.time() + now[0]
        os.utime(folder / LOCK, (heartbeat, heartbeat))
        if now[0] > 3 * LEASE_SECONDS:
            (folder / LOCK).unlink()

    monkeypatch.setattr(time, "sleep", sleep)
    messages = []
    assert cancel_study(folder, say=messages.append)
    assert "has stopped" in messages[1]


def test_jobs_are_tried_again_on_request(folder, quick):
    one, two = failed("a on first", "abc" + "0" * 61), failed("b on first", "abd" + "0" * 61)
    write_progress(folder, record(failures=(one, two)))
    runner = Runner(folder)
    holder = find_owner(folder / LOCK)
    assert holder is not None
    assert retry_jobs(folder, holder, ["b on first", "abc"]) == (two, one)
    for text, problem in [("ab", "matches 2 jobs"), ("b on frist", "did you mean 'b on")]:
        with pytest.raises(ConfigError, match=problem):
            retry_jobs(folder, holder, [text])
    while not runner.heard:
        time.sleep(0.01)
    assert retry_jobs(folder, holder, []) == (one, two)
    while len(runner.heard) < 2:
        time.sleep(0.01)
    cancel_study(folder, say=print)
    assert runner.heard == [(two.id, one.id), (one.id, two.id)]


def test_nothing_to_retry_is_reported(folder):
    write_progress(folder, record(failures=()))
    with running(folder):
        holder = find_owner(folder / LOCK)
        assert holder is not None
        with pytest.raises(ConfigError, match="has no failed jobs"):
            retry_jobs(folder, holder, [])


def test_a_runner_that_is_gone_is_not_asked_to_retry(root, folder, cli):
    write_progress(folder, record(failures=(failed("a on first", "abc" + "0" * 61),)))
    locked_elsewhere(folder, silent_for=LEASE_SECONDS + 60)
    code, _, err = cli("study", "retry", "one", "a on first", "--root", root)
    assert (code, "one is not running" in err) == (2, True)
    assert read_requests(folder) == []


def test_settings_that_were_not_run_are_not_retried(root, folder, cli, tmp_path):
    settings = json.loads((folder / "config.json").read_text())["study"]
    file = tmp_path / "one.yaml"
    file.write_text(json.dumps({**settings, "title": "Edited"}))
    code, _, err = cli("study", "retry", file, "--root", root)
    assert (code, "has other settings than the last run of one" in err) == (2, True)


def test_a_corpus_that_is_gone_is_missing(root, folder):
    write_study_report(prepare(Study.saved(folder).config, root))
    assert verify_study(folder, say=print).missing["corpora"] == 0
    shutil.rmtree(root / "store/data")
    verified = verify_study(folder, say=print)
    assert (verified.missing["corpora"], verified.checked["corpora"]) == (1, 0)
    assert "1 corpora missing; 'biphasic study run' creates them" in verified.lines()


def test_watching_ends_with_the_study(root, folder, cli, quick, monkeypatch):
    runner = Runner(folder)
    write_progress(folder, record())
    sleep, looks = time.sleep, []

    def look_again(seconds):
        if threading.current_thread() is threading.main_thread():
            looks.append(seconds)
            if len(looks) == 3:
                threading.Timer(0, cancel_study, [folder], {"say": lambda _: None}).start()
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", look_again)
    code, out, _ = cli("study", "status", "one", "--root", root, "--watch")
    assert runner.ended()
    assert code == 0
    lines = out.splitlines()
    counted = "1 done, 1 running, 0 waiting, 1 failed, 1 blocked by a failed job, of 4 jobs"
    assert lines[0] == f"one: {counted}"  # said once, though it was looked at three times
    assert lines[1] == "one: finished"


def test_looking_at_a_running_study_imports_no_torch():
    import subprocess

    modules = "sys, biphasic.study.find, biphasic.cli.commands"
    program = f"import {modules}; print('torch' in sys.modules)"
    found = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert found == "False\n"
