"""What is decided before a process group starts, and what is made of its last words."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from biphasic import distributed
from biphasic.child import GROUP_STORE
from biphasic.distributed import (
    ALONE,
    Activity,
    Heartbeat,
    check_devices,
    checksum,
    joined_node,
    joined_process_group,
    served_store,
)
from biphasic.errors import ConfigError, DataError, DoneElsewhereError, LostRankError
from biphasic.execution import rank_worker, ranks
from biphasic.execution.ranks import Heartbeats
from biphasic.store import complete_folder
from biphasic.study.inputs.corpus import DataPaths
from biphasic.study.jobs import RANK, TrainJob
from biphasic.training.compute import ComputeConfig
from biphasic.training.lineage import Lineage
from mini_study import has_ended

LOST = {
    "rank": 0,
    "kind": "LostRankError",
    "error": "a process that trains with this one ended",
    "fields": {},
}
DAMAGED = {"rank": 1, "kind": "DataError", "error": "row 7: damaged", "fields": {}}
FULL = {
    "rank": 0,
    "kind": "OSError",
    "error": "[Errno 28] No space left on device: '/a'",
    "fields": {"number": 28, "reason": "No space left on device", "file": "/a"},
}
BUG = {"rank": 2, "kind": "", "error": "ZeroDivisionError: division by zero", "fields": {}}


@pytest.mark.parametrize(
    ("failures", "kind", "text"),
    [
        ([DAMAGED, LOST], DataError, "row 7: damaged"),
        # Whoever has lost another may be heard first; it does not explain anything.
        ([LOST, DAMAGED], DataError, "row 7: damaged"),
        (
            [LOST, BUG, DAMAGED],
            LostRankError,
            "process 2 of a group of 3: ZeroDivisionError: division",
        ),
        ([LOST], LostRankError, "a process that trains with this one ended"),
        ([], LostRankError, r"one of 3 processes of the group died \(killed, or out of memory\?\)"),
        ([LOST, FULL], OSError, r"^\[Errno 28\] No space left on device: '/a'$"),
        # What is no error of ours is not made one by its name.
        ([{**BUG, "kind": "annotations"}], LostRankError, "process 2 of a group of 3"),
    ],
)
def test_the_original_failure_is_reported(failures, kind, text):
    error = ranks._first_failure(failures, 3)
    assert type(error) is kind
    with pytest.raises(kind, match=text):
        raise error


def job_of(make_recipe, tmp_path, processes):
    folders = {name: tmp_path / name for name in ("tokenizer", "train", "heldout")}
    return TrainJob(
        id="i" * 64,
        label="a process group",
        store=tmp_path,
        data=folders,  # type: ignore[arg-type]
        recipe=make_recipe({"objective": "clm", "steps": 3}),
        start=0,
        end=3,
        checkpoint_every=0,
        heldout_every=0,
        tensorboard=None,
        compute=ComputeConfig(processes=processes),
    )


def test_a_warning_is_a_line_of_its_own_and_no_part_of_the_progress_line(
    make_recipe, training_data, tmp_path
):
    with complete_folder(tmp_path / "tokenizer") as partial:
        training_data.tokenizer.save(partial)
    for name, text in (("train", training_data.corpus), ("heldout", training_data.heldout)):
        (tmp_path / name).symlink_to(text.folder)
    recipe, reports = make_recipe({"objective": "mlm", "steps": 1, "mlm_probability": 1e-9}), []
    job = job_of(make_recipe, tmp_path, 1).model_copy(update={"recipe": recipe, "end": 1})
    data = DataPaths.model_validate(job.data)
    job = job.model_copy(
        update={"data": data, "id": Lineage(recipe, data.open().fingerprint).identities[-1]}
    )
    job.train(reports.append)
    [noted] = [one for one in reports if one.note]
    assert (noted.text, noted.note[:22]) == ("", "step 0 makes no update")
    # Before its first step nobody knows where a resumed run goes on: no total is told.
    assert (noted.done, noted.total) == (0, 0)


@pytest.fixture
def no_process(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)


def test_too_many_processes_are_refused_before_any_starts(
    make_recipe, tmp_path, monkeypatch, no_process
):
    with pytest.raises(ConfigError, match=r"rows_per_step: 4 .* 5 processes"):
        ranks.run_ranks(job_of(make_recipe, tmp_path, 5), print, worker=RANK)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    with pytest.raises(ConfigError, match=r"processes: 4 .* has 3"):
        ranks.run_ranks(job_of(make_recipe, tmp_path, 4), print, worker=RANK)
    check_devices(3)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_state_that_another_process_has_made_is_not_trained_again_and_leaves_no_checkpoints(
    make_recipe, tmp_path, no_process, processes
):
    job = job_of(make_recipe, tmp_path, processes)
    [state] = job.outputs()
    state.mkdir(parents=True)
    (state / "manifest.json").touch()
    left = tmp_path / "progress" / f"{job.id}-from-0"
    left.mkdir(parents=True)
    with pytest.raises(DoneElsewhereError):
        job.run(print)
    assert not left.exists()


def test_a_process_outside_of_a_group_is_alone(monkeypatch):
    for size in (None, "1"):
        monkeypatch.delenv("WORLD_SIZE", raising=False)
        if size:
            monkeypatch.setenv("WORLD_SIZE", size)
        with joined_process_group() as found:
            assert found is ALONE
            assert not torch.distributed.is_initialized()
            values = torch.tensor([1.5, 2.5])
            found.sum_(values)
            found.barrier()
            found.require_same(7, what="numbers")
            assert values.tolist() == [1.5, 2.5]
            assert found.from_first(5) == 5


def test_a_connection_lost_in_a_group_is_a_lost_rank(monkeypatch, tmp_path):
    def fails_with(error, *, while_starting=False):
        def start(*_, **__):
            if while_starting:
                raise error

        monkeypatch.setattr(torch.distributed, "init_process_group", start)
        with joined_process_group() as group:
            group.heartbeat.at(Activity.COMPUTING, step=4)
            raise error

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv(GROUP_STORE, str(tmp_path / "store"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    lost = "a process that trains with this one has ended"
    refused = torch.distributed.DistNetworkError("connection refused\nframe #0")
    with pytest.raises(LostRankError, match=f"^rank 1: {lost}: connection refused$"):
        fails_with(refused, while_starting=True)
    closed = RuntimeError("[/gloo/transport/tcp/pair.cc:547] Connection closed by peer")
    with pytest.raises(LostRankError, match=rf"^rank 1, in step 5: {lost}: .*peer$"):
        fails_with(closed)
    with pytest.raises(RuntimeError, match="a bug"):
        fails_with(RuntimeError("a bug"))


def test_checksums_see_every_bit_of_every_tensor():
    tensors = [torch.ones(3), torch.zeros(2, 2)]
    whole = checksum(tensors)
    assert 0 <= whole < 1 << 63
    assert whole == checksum(each.clone() for each in tensors)
    tensors[1][1, 1] = -0.0
    assert checksum(tensors) != whole
    tensors[1][1, 1] = torch.tensor(0.0).nextafter(torch.tensor(1.0))
    assert checksum(tensors) == whole + 1


class Clock:
    """Time, in seconds, that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Group:
    """Ranks whose heartbeats a test writes, and what is heard of them."""

    def __init__(self, clock: Clock, size: int) -> None:
        self.clock, self.heard = clock, Heartbeats(size)
        self.ranks = [Heartbeat() for _ in range(size)]

    def hear(self) -> None:
        for rank, heartbeat in enumerate(self.ranks):
            self.heard.hear(rank, heartbeat.told())

    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.now += 1.0
            self.heard.tick()


@pytest.fixture
def group_of(monkeypatch) -> Callable[[int], Group]:
    """Return groups of some ranks: `group_of(3)`."""
    clock = Clock()
    for module in (distributed, ranks):
        monkeypatch.setattr(module, "time", clock)
    return lambda size: Group(clock, size)


def waiting(heartbeat: Heartbeat, step: int) -> None:
    """Leave a rank in the middle of a step, where it waits for others."""
    heartbeat.at(Activity.COMPUTING, step)
    heartbeat.waits = True


def test_a_rank_that_hangs_is_named_with_its_step_and_those_that_wait_for_it(group_of):
    group = group_of(4)
    for heartbeat in group.ranks:
        waiting(heartbeat, 118)
    group.ranks[3].at(Activity.READING, 118)
    group.ranks[3].waits = False
    group.hear()
    group.pass_time(600)
    assert group.heard.hang() is None
    group.pass_time(1)
    assert group.heard.hang() == (
        "rank 3 has not moved since step 118 for 10 min 1 s (it was reading its rows); ranks 0, 1, "
        "2 wait for it in step 119; run again to resume from the latest checkpoint"
    )
    group.ranks[1].waits = False
    group.ranks[2].waits = False
    group.pass_time(10)
    group.heard.hear(2, group.ranks[2].told())
    assert "ranks 0, 1 wait for it in step 119" in str(group.heard.hang())
    group.heard.hear(1, group.ranks[1].told())
    group.pass_time(595)
    assert str(group.heard.hang()).endswith(
        "rank 0 waits for it in step 119; run again to resume from the latest checkpoint"
    )
    group.heard.hear(3, group.ranks[3].told())  # it moves again
    assert group.heard.hang() is None


def test_several_ranks_hang_or_all_wait(group_of):
    group = group_of(12)
    for heartbeat in group.ranks:
        waiting(heartbeat, 7)
    group.hear()
    group.pass_time(601)
    assert str(group.heard.hang()).startswith(
        "no rank has moved since step 7 for 10 min 1 s: all wait for each other"
    )
    group = group_of(12)
    for heartbeat in group.ranks[:2]:
        waiting(heartbeat, 7)
    for heartbeat in group.ranks[2:]:
        heartbeat.at(Activity.DEVICE, 7)
    group.hear()
    group.pass_time(601)
    message = str(group.heard.hang())
    assert message.startswith(
        "rank 2 has not moved since step 7 for 10 min 1 s (it was waiting for"
    )
    assert "rank 4 has not" in message
    assert "; and 7 more; ranks 0, 1 wait for them in step 8; run again" in message


@pytest.mark.parametrize("activity", [Activity.STARTING, Activity.HELDOUT, Activity.SAVING])
def test_what_takes_long_may_take_half_an_hour(group_of, activity):
    group = group_of(2)
    waiting(group.ranks[1], 5)
    group.ranks[0].at(activity, 5)
    group.hear()
    group.pass_time(1800)
    assert group.heard.hang() is None
    group.hear()  # it goes on: held-out losses, batch by batch
    group.pass_time(1800)
    assert group.heard.hang() is None
    group.pass_time(1)
    since = "" if activity == Activity.STARTING else " since step 5"
    assert str(group.heard.hang()).startswith(
        f"rank 0 has not moved{since} for 30 min 1 s (it was {activity}); rank 1 waits for it"
    )


def test_a_parent_that_was_stopped_takes_no_rank_for_hanging(group_of):
    group = group_of(2)
    group.ranks[0].at(Activity.COMPUTING, 5)
    group.hear()
    group.clock.now += 7 * 24 * 3600.0
    group.heard.tick()
    assert group.heard.hang() is None


@pytest.mark.parametrize(("text", "limit"), [("00:00:20", 20), ("", 600)])
def test_the_timeout_is_a_setting(group_of, monkeypatch, text, limit):
    monkeypatch.setenv("BIPHASIC_RANK_TIMEOUT", text)
    group = group_of(2)
    for heartbeat in group.ranks:
        heartbeat.at(Activity.COMPUTING, 5)
    group.hear()
    group.pass_time(limit)
    assert group.heard.hang() is None
    group.pass_time(1)
    assert group.heard.hang() is not None


@pytest.mark.parametrize("text", ["10", "00:00:00", "1 h", "-1:00:00"])
def test_a_timeout_that_is_no_time_is_refused(make_recipe, tmp_path, monkeypatch, no_process, text):
    monkeypatch.setenv("BIPHASIC_RANK_TIMEOUT", text)
    with pytest.raises(ConfigError, match=rf"^BIPHASIC_RANK_TIMEOUT {text}: .*HH:MM"):
        ranks.run_ranks(job_of(make_recipe, tmp_path, 2), print, worker=RANK)


def test_a_slow_rank_is_named_once_with_its_seconds(group_of):
    group = group_of(3)
    group.hear()
    assert group.heard.slow() is None  # they start
    messages = []
    for step in range(100):
        for heartbeat, seconds in zip(group.ranks, (2, 5, 2), strict=True):
            group.clock.now = 1000.0 + 5 * step
            heartbeat.at(Activity.READING, step)
            group.clock.now += seconds
            with heartbeat.waiting():  # for the others
                group.clock.now = 1000.0 + 5 * (step + 1)
        group.clock.now = 1000.0 + 5 * step
        group.pass_time(5)
        group.hear()
        messages.append(group.heard.slow())
    assert [text for text in messages if text] == [
        "rank 1 is slow: its part of a step takes 5 s, that of the other ranks 2 s (median), and "
        "they wait for it"
    ]


def test_a_rank_counts_its_own_work_alone(group_of):
    clock, heartbeat = group_of(1).clock, Heartbeat()
    for activity, seconds in (
        (Activity.READING, 1), (Activity.COMPUTING, 2), (Activity.HELDOUT, 4),
        (Activity.COMPUTING, 8), (Activity.SAVING, 16), (Activity.DEVICE, 32),
    ):  # fmt: skip
        heartbeat.at(activity)
        clock.now += seconds
    heartbeat.at(Activity.COMPUTING)
    with heartbeat.waiting():
        clock.now += 64
    clock.now += 128
    before = heartbeat.told()
    assert before == heartbeat.told()
    heartbeat.at(Activity.COMPUTING)
    assert heartbeat.own_seconds == 1 + 2 + 8 + 128
    assert heartbeat.told() != before


RANK_OF_A_TEST = """
import os, signal, sys, time
if sys.argv[1] == "names":
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "BIPHASIC_GROUP_STORE")
    os.write(1, (" ".join(os.environ[name] for name in names) + "\\n").encode())
elif sys.argv[1] == "one fails" and os.environ["RANK"] == "1":
    sys.exit(3)
else:
    os.write(1, f"{os.getpid()}\\n".encode())
    time.sleep(100)
"""


def start_node(script: Path, what: str) -> subprocess.Popen[str]:
    script.write_text(RANK_OF_A_TEST)
    command = rank_worker.command("/a/store", 1, 2, [str(script), what])
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_node_starts_its_ranks_with_their_places(tmp_path):
    with start_node(tmp_path / "rank.py", "names") as group:
        assert group.stdout
        assert sorted(group.stdout) == ["0 2 0 2 /a/store\n", "1 2 1 2 /a/store\n"]
    assert group.returncode == 0


def test_a_failed_rank_ends_the_others(tmp_path):
    with start_node(tmp_path / "rank.py", "one fails") as group:
        assert group.wait(60) == 1


def test_a_node_ends_its_ranks_on_sigterm(tmp_path):
    with start_node(tmp_path / "rank.py", "sleeps") as group:
        assert group.stdout
        pids = [int(group.stdout.readline()) for _ in range(2)]
        group.terminate()
        assert group.wait(60) == 1
    assert all(has_ended(pid, within=5) for pid in pids)


def test_nodes_of_a_group_have_numbers_of_their_own():
    store, address = served_store("localhost")
    assert [joined_node(address) for _ in range(3)] == [0, 1, 2]
    del store
