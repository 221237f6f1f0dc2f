"""Jobs on blocks of Parsl: started as processes of this machine, with all that a cluster does."""

import os
import signal
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import psutil
import pytest
import zmq
from parsl.executors.high_throughput.errors import CommandClientTimeoutError, ManagerLost
from parsl.jobs.states import JobStatus

from biphasic.errors import ConfigError, LockHeldError, StoppedError
from biphasic.execution.cluster import engine, providers
from biphasic.execution.cluster import executor as module
from biphasic.execution.cluster.engine import Block
from biphasic.execution.cluster.executor import ClusterExecutor
from biphasic.execution.cluster.remote import RemoteJob, RemoteProgress, run_job
from biphasic.execution.cluster.site import Site, check_fits, group_nodes
from biphasic.execution.executor import Work
from biphasic.execution.job import ExecutorError, JobFailedError, RequeuedError
from biphasic.execution.slots import Nodes
from biphasic.locks import lock_work
from biphasic.study.run.jobs import WORKER, load_job
from trivial_jobs import RUNS, save_trivial

pytestmark = pytest.mark.slow

PATIENCE = 120
SITE = Site(scheduler="local", jobs_per_node=1, poll_seconds=1)
SLURM = SITE.model_copy(
    update={"scheduler": "slurm", "walltime": "00:01:30", "address": "127.0.0.1"}
)


def on_blocks(store, *, site=SITE, processes=1, seen=None, said=None):
    work = Work(
        store,
        store / "study",
        load_job=load_job,
        worker=WORKER,
        processes=processes,
        watch=lambda job, progress: seen.append((job, progress)) if seen is not None else None,
        say=(said if said is not None else []).append,
    )
    return ClusterExecutor(work, site)


def interchange_of_parsl():
    """Return the process of Parsl that passes jobs to blocks."""
    [interchange] = [
        child for child in psutil.Process().children() if "interchange" in " ".join(child.cmdline())
    ]
    return interchange


def test_jobs_run_and_fail_as_on_one_machine_and_outlive_parsls_interchange(tmp_path):
    said = []
    with on_blocks(tmp_path, said=said) as executor:
        assert executor.num_slots == 2  # one runs, one waits
        executor.submit(save_trivial(tmp_path, "a")).result(timeout=PATIENCE)
        wrong = executor.submit(save_trivial(tmp_path, "b", runs=RUNS)).exception(timeout=PATIENCE)
        assert isinstance(wrong, JobFailedError)
        assert str(wrong).startswith(f"{tmp_path / 'none'}: ")
        assert wrong.is_final
        with lock_work(tmp_path, "c" * 64):
            taken = executor.submit(save_trivial(tmp_path, "c", runs=RUNS)).exception(
                timeout=PATIENCE
            )
        assert isinstance(taken, LockHeldError)
        assert f"process {os.getpid()}" in taken.owner

        interchange = interchange_of_parsl()
        interchange.send_signal(signal.SIGINT)  # as Ctrl-C in a terminal does
        executor.submit(save_trivial(tmp_path, "e")).result(timeout=PATIENCE)
        interchange.send_signal(signal.SIGSTOP)  # the job stays in its queue
        future = executor.submit(save_trivial(tmp_path, "d"))
        interchange.kill()
        assert isinstance(future.exception(timeout=PATIENCE), RequeuedError)
        assert said == [
            "Parsl's interchange for slots ended with exit code -9; starting Parsl again"
        ]
        executor.submit(save_trivial(tmp_path, "d")).result(timeout=PATIENCE)
    assert not interchange.is_running()
    assert (tmp_path / "study/cluster/blocks.json").read_text() == "[]"


def test_an_interchange_that_does_not_answer_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "_ANSWER_SECONDS", 1.0)
    said = []
    with on_blocks(tmp_path, said=said) as executor:
        interchange = interchange_of_parsl()
        interchange.send_signal(signal.SIGSTOP)
        future = executor.submit(save_trivial(tmp_path, "a"))
        assert isinstance(future.exception(timeout=PATIENCE), RequeuedError)
        interchange.kill()
    assert said == ["Parsl's interchange for slots does not answer; starting Parsl again"]


@pytest.fixture
def make_engine(monkeypatch):
    """Return engines whose executor of Parsl stands still: `make_engine(poll_facade=...)`."""
    monkeypatch.setattr(engine, "Strategy", Mock())

    def make(*, site=SITE, folder=Path("/data/runs"), **changes):
        parsl = Mock(
            provider=SimpleNamespace(max_blocks=1, pause_until=0.0),
            interchange_proc=Mock(poll=lambda: None),
            bad_state_is_set=False,
            executor_exception=None,
            status_facade={},
            blocks_to_job_id={},
            **changes,
        )
        monkeypatch.setattr(engine, "parsl_executor", lambda *_, **__: parsl)
        return engine.Engine(site, folder, submissions=deque()), parsl

    return make


def test_an_interchange_that_takes_no_job_does_not_answer(make_engine):
    made, _ = make_engine(submit=Mock(side_effect=zmq.Again))
    assert made.look() == ""
    assert not made.submit("slots", print, None).done()
    assert made.look() == "Parsl's interchange for slots does not answer"


def test_an_interchange_that_ends_while_it_is_asked_has_ended(make_engine, monkeypatch):
    def poll_facade():
        process.returncode = -9
        raise CommandClientTimeoutError

    made, parsl = make_engine(poll_facade=poll_facade)
    process = parsl.interchange_proc = Mock(returncode=None)
    process.poll = lambda: process.returncode
    monkeypatch.setattr(time, "sleep", lambda _: None)
    assert made.look() == "Parsl's interchange for slots ended with exit code -9"


class Blocks:
    """An engine with one block; it runs no job."""

    made: list["Blocks"]
    group = Nodes()

    def __init__(self, _site, folder, *, submissions, **_):
        self.folder, self.submissions = folder, submissions
        self.over, self.asked, self.given = False, [], {}
        self.made.append(self)

    def submit(self, _label, _function, request):
        self.given[request.job] = Future()
        return self.given[request.job]

    def look(self):
        return ""

    def trouble(self):
        return ""

    def silence(self):
        return ""

    def cancel(self):
        self.asked.append("cancel")
        return ["77"]

    def stop(self):
        self.asked.append("stop")

    def blocks(self):
        return [Block("slots", "4", "77", is_over=self.over, is_queued=False)]


@pytest.fixture
def engines(monkeypatch) -> list[Blocks]:
    """Engines that were started in place of Parsl's; they are looked at all the time."""
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(module, "Engine", Blocks)
    monkeypatch.setattr(Blocks, "made", made := [], raising=False)
    return made


def test_engines_that_die_again_and_again_end_the_run_and_share_one_limit(
    tmp_path, engines, monkeypatch
):
    monkeypatch.setattr(Blocks, "look", lambda _: "it died")
    job = save_trivial(tmp_path, "a")

    def submit_again_and_again(executor):
        while True:
            with suppress(RequeuedError):
                executor.submit(job).result(timeout=PATIENCE)

    with (
        on_blocks(tmp_path) as executor,
        pytest.raises(ExecutorError, match="it died, 11 times within an hour"),
    ):
        submit_again_and_again(executor)
    assert len(engines) == 11
    assert all(one.submissions is engines[0].submissions for one in engines)


def test_blocks_that_fail_at_once_end_the_run(tmp_path):
    site = SITE.model_copy(update={"setup": ("echo no such module >&2", "exit 3")})
    with on_blocks(tmp_path, site=site) as executor:
        future = executor.submit(save_trivial(tmp_path, "a"))
        error = future.exception(timeout=PATIENCE)
        assert isinstance(error, ExecutorError)
        assert "no such module" in str(error)
        assert str(tmp_path / "study/cluster") in str(error)
        with pytest.raises(ExecutorError, match="no such module"):
            executor.submit(save_trivial(tmp_path, "b"))


@pytest.fixture
def lone(tmp_path, engines):
    """A started executor, and a function that lets a job run on block 4 until its end."""
    with on_blocks(tmp_path, site=SLURM, seen=(seen := [])) as executor:

        def run(*, first, end, total=9):
            engines[0].over = False
            future = executor.submit(save_trivial(tmp_path, "a"))
            path = engines[0].folder / "running" / f"{'a' * 64}.json"
            record = RemoteProgress(
                job="a" * 64, label="slots", block="4", host="n7",
                first=first, done=7, total=total, text="x",
            )  # fmt: skip
            seen.clear()
            path.write_text(record.model_dump_json())
            while not seen:  # until it was read
                time.sleep(0.01)
            end(engines[0])
            error = future.exception(timeout=PATIENCE)
            assert not path.exists()
            return error

        yield run, seen


def test_a_lost_block_counts_as_a_try_unless_the_one_before_saved_progress(lone):
    run, seen = lone

    def end(parsl):
        parsl.over = True

    lost = run(first=0, end=end)
    assert isinstance(lost, JobFailedError)
    assert not lost.is_final
    assert str(lost) == "block 4 on n7 ended before the job"
    assert isinstance(run(first=0, end=end), JobFailedError)
    assert isinstance(run(first=5, end=end), RequeuedError)
    assert isinstance(run(first=5, end=end), JobFailedError)
    job, progress = seen[0]
    assert job == "a" * 64
    assert (progress.done, progress.total, progress.place) == (7, 9, "on n7, block 4")


def test_a_job_that_is_longer_than_a_block_is_not_tried_for_ever(lone):
    run, _ = lone

    def end(parsl):
        (parsl.folder / "running" / f"{'a' * 64}.json").unlink()  # as its node does
        parsl.given["a" * 64].set_result(RequeuedError("its block reached the time limit"))

    # The first try may have begun late. Fewer steps are left if runs of a grid have finished.
    for total, kind in (
        (9, RequeuedError), (9, JobFailedError), (6, RequeuedError), (6, JobFailedError),
    ):  # fmt: skip
        error = run(first=0, total=total, end=end)
        assert type(error) is kind
    assert "time limit (00:01:30)" in str(error)
    assert "longer walltime" in str(error)
    assert not error.is_final


def test_a_node_that_parsl_has_lost_counts_like_a_lost_block(lone):
    run, _ = lone

    def end(parsl):
        parsl.given["a" * 64].set_exception(ManagerLost(b"m", "n7"))

    for first, kind in ((0, JobFailedError), (5, RequeuedError)):
        assert type(run(first=first, end=end)) is kind


def test_an_end_waits_for_no_queued_job_and_remembers_what_it_could_not_cancel(tmp_path, engines):
    with on_blocks(tmp_path, site=SLURM) as executor:
        executor.submit(save_trivial(tmp_path, "a"))
    [parsl] = engines
    assert (parsl.folder / "stop").exists()
    assert parsl.asked == ["cancel", "stop"]
    assert (tmp_path / "study/cluster/blocks.json").read_text() == '["77"]'


def test_a_second_interrupt_does_not_leave_blocks(tmp_path, engines, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), on_blocks(tmp_path, site=SLURM):  # noqa: PT012
        (engines[0].folder / "running/a.json").touch()
        monkeypatch.setattr(time, "sleep", interrupt)
    assert engines[0].asked == ["cancel", "stop"]


def test_a_job_that_waited_for_a_process_does_not_start_after_the_end(tmp_path):
    (tmp_path / "stop").touch()
    error = run_job(RemoteJob("a", tmp_path, WORKER, 1, tmp_path, tmp_path, 60, "slots"))
    assert isinstance(error, StoppedError)


def test_blocks_of_a_killed_run_are_cancelled_and_nothing_else(tmp_path, engines, monkeypatch):
    cancelled, said = [], []
    monkeypatch.setattr(
        providers, "run_command", lambda command, _: (cancelled.append(command) or 0, "", "")
    )
    monkeypatch.setattr(Blocks, "cancel", lambda _: [])
    monkeypatch.setattr(Blocks, "blocks", lambda _: [])
    file = tmp_path / "study/cluster/blocks.json"
    file.parent.mkdir(parents=True)
    for content in ('["12", "-u root", "13; reboot"]', "{broken"):
        file.write_text(content)
        with on_blocks(tmp_path, site=SLURM, said=said):
            assert cancelled == ["scancel 12"]
    assert said == ["cancelled batch jobs of an earlier run: 12"]


def test_a_block_inherits_nothing_of_the_job_that_submits_it(tmp_path, monkeypatch):
    """`sbatch` here is a script that prints what it would pass on."""
    script = tmp_path / "sbatch"
    script.write_text("#!/bin/sh\nenv\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    inherited = {"SLURM_NTASKS": "3", "SBATCH_EXPORT": "NONE", "PMI_RANK": "1", "PMIX_RANK": "0"}
    for name, value in {
        **inherited,
        "SLURM_CONF": "/etc/slurm.conf",
        "OWN_SETTING": "kept",
    }.items():
        monkeypatch.setenv(name, value)
    code, printed, _ = providers.run_command("sbatch block.sh", 10)
    names = {line.partition("=")[0] for line in printed.splitlines()}
    assert code == 0
    assert names.isdisjoint(inherited)
    assert {"SLURM_CONF", "OWN_SETTING", "PATH"} <= names


def test_groups_that_the_site_cannot_hold_are_refused(tmp_path):
    site = SITE.model_copy(update={"scheduler": "slurm", "jobs_per_node": 4})
    assert group_nodes(site, 4) == 1
    with pytest.raises(ConfigError, match=r"needs 2 nodes, .* allows 1"):
        on_blocks(tmp_path, site=site, processes=8)
    with pytest.raises(ConfigError, match="nodes with 4 each"):
        on_blocks(tmp_path, site=site, processes=5)


def test_a_silent_queue_is_mentioned_once_a_minute(tmp_path, now):
    said = []
    executor = on_blocks(tmp_path, said=said)
    silence = [""]
    names = {"queue": lambda _: "batch jobs 7 wait", "silence": lambda _: silence[0]}
    executor._engine = type("E", (), names)()
    queued = [Block("slots", "0", "7", is_over=False, is_queued=True)]
    for now[0] in (100.0, 159.0, 161.0, 200.0, 230.0):
        executor._mention_queue(queued)
    assert said == ["waiting for nodes: batch jobs 7 wait"] * 2
    silence[0] = "squeue: no answer within 60 seconds"
    for now[0] in (231.0, 295.0):
        executor._mention_queue([])
    assert said[2:] == ["the scheduler does not answer: squeue: no answer within 60 seconds"]


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A provider of blocks on Slurm, whose commands answer as given, with three batch jobs."""
    answers = {"sacct": (1, "", "disabled"), "squeue": (0, "", ""), "sbatch": (0, "", "")}
    monkeypatch.setattr(providers, "run_command", lambda command, _: answers[command.split()[0]])
    provider = providers.provider_of(SLURM, nodes=1, is_group=False)
    provider.script_dir = str(tmp_path)
    for batch in ("7", "8", "9"):
        answers["sbatch"] = (0, f"Submitted batch job {batch}", "")
        assert provider.submit("true", 1) == batch

    def states(*answer):
        answers["squeue"] = answer
        return [status.state.name for status in provider.status(["7", "8", "9"])]

    return provider, answers, states


def test_slurms_states_are_read_and_a_scheduler_that_is_away_changes_none(slurm):
    provider, _, states = slurm
    assert states(0, "7 RUNNING\n8 PENDING\n9 COMPLETING\n66 FAILED\n", "") == [
        "RUNNING", "PENDING", "RUNNING",
    ]  # fmt: skip
    before = states(0, "7 RUNNING\n8 CONFIGURING\n9 NODE_FAIL\n", "")
    assert before == ["RUNNING", "PENDING", "FAILED"]
    assert provider.silence == ""
    assert states(1, "", "slurm_load_jobs error: Unable to contact slurm controller") == before
    assert provider.silence.startswith("squeue: slurm_load_jobs error")
    for nonsense in ("Segmentation fault (core dumped)\n", "7\n", "\0\ufffd\n"):
        assert states(0, nonsense, "") == before
        assert provider.silence.startswith("unreadable answer")
    # An empty answer is believed the second time: squeue forgets ended jobs after some minutes.
    assert states(0, "", "") == before
    assert states(0, "7 RUNNING\n8 PENDING\n9 NODE_FAIL\n", "") == before
    assert states(0, "8 PENDING\n", "") == before
    assert states(0, "8 PENDING\n", "") == ["COMPLETED", "PENDING", "COMPLETED"]
    assert provider.silence == ""


def test_commands_of_the_scheduler_that_hang_are_killed(tmp_path):
    hangs = f"sh -c 'sleep 1000 & echo $! > {tmp_path}/pid; wait'"
    code, printed, complaint = providers.run_command(hangs, 0.5)
    assert (code, printed, complaint) == (124, "", "no answer within 0.5 seconds")
    assert providers.run_command("no-such-command 1", 0.5) == (
        127, "", "no-such-command: No such file or directory"
    )  # fmt: skip
    child = int((tmp_path / "pid").read_text())
    with suppress(psutil.NoSuchProcess):
        psutil.Process(child).wait(timeout=PATIENCE)


def test_a_refused_submission_is_tried_again_later_and_slurm_requeues_no_block(slurm, tmp_path):
    provider, answers, _ = slurm
    assert provider.pause_until == 0.0
    script = next(tmp_path.glob("biphasic.*")).read_text()
    assert "#SBATCH --time=00:01:30\n#SBATCH --no-requeue\n" in script
    answers["sbatch"] = (1, "", "sbatch: error: Unable to contact slurm controller\n")
    pauses = []
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(RuntimeError, match="Unable to contact slurm controller"):
            provider.submit("true", 1)
        pauses.append(round(provider.pause_until - began, -1))
    assert pauses == [30, 60]


def test_failed_blocks_are_counted_in_the_order_of_their_submission(make_engine):
    def status(state, message=None):
        return JobStatus(engine.JobState[state], message=message)

    made, parsl = make_engine(site=SLURM)

    def have(states, submitted):
        parsl.status_facade = states
        parsl.blocks_to_job_id = dict.fromkeys(submitted, "7")

    refused = status("FAILED", "Failed to start block 10: sbatch: error: away")
    # Parsl lists refused submissions last, whenever they were.
    have({"2": status("COMPLETED"), "10": refused, "0": refused, "1": refused}, ["2"])
    assert made.trouble() == ""
    have({"2": status("COMPLETED"), "10": refused, "3": refused, "9": refused}, ["2"])
    assert made.trouble() == "sbatch: error: away"
    # Blocks that ran jobs did not fail, however they ended.
    states = {"0": status("FAILED"), "1": status("CANCELLED"), "2": status("FAILED")}
    have(states, states)
    assert made.trouble() == ""
    have({"0": status("MISSING")}, ["0"])
    assert made.trouble(most=1) == (
        "its nodes did not connect to 127.0.0.1, ports 54000 to 55000, "
        "or they do not see /data/runs"
    )
    have({"0": status("MISSING", "the scheduler says: batch job 7 is CANCELLED")}, ["0"])
    assert made.trouble(most=1) == "the scheduler says: batch job 7 is CANCELLED"
    assert [block.failure for block in made.blocks()] == [made.trouble(most=1)]


def test_paths_that_shell_lines_cannot_hold_are_refused(tmp_path, monkeypatch):
    check_fits(SITE, tmp_path)
    for name in ("my runs", "a;reboot", "$(id)", "{x}"):
        with pytest.raises(ConfigError, match="choose another --root"):
            check_fits(SITE, tmp_path / name)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="sbatch: not found"):
        check_fits(SLURM, tmp_path)
