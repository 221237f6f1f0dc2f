"""One process at a time holds a claim, whoever crashes, sleeps or comes late."""

from __future__ import annotations

import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from biphasic import claim as claims
from biphasic.claim import (
    STALE_SECONDS,
    Claim,
    Holder,
    claim,
    exclusive_folder,
    find_holder,
    wait_for,
)
from biphasic.errors import BiphasicError, DataError, LockedError, StudyError, TakenError

CONTENDER = """
import sys
from pathlib import Path
from biphasic import claim
from biphasic.claim import wait_for
claim._LONGEST_POLL = 0.02
folder, turns = Path(sys.argv[1]), int(sys.argv[2])
for _ in range(turns):
    with wait_for(folder / "claim", doing="counting") as held:
        inside = folder / "inside"
        inside.touch(exist_ok=False)
        counter = folder / "counter"
        counter.write_text(str(int(counter.read_text()) + 1))
        held.check()
        inside.unlink()
"""

HOLDER = """
import sys, time
from pathlib import Path
from biphasic import claim
claim.HEARTBEAT_SECONDS = 0.05
with claim.claim(Path(sys.argv[1]), doing="holding on") as held:
    print("held", flush=True)
    while not held.is_lost:
        time.sleep(0.01)
print("lost", flush=True)
"""


class FakeClock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> FakeClock:
    fake = FakeClock()
    monkeypatch.setattr(claims, "monotonic", fake)
    return fake


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "locks" / "work"


def start_holder(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def move_elsewhere(path: Path, *, silent_for: float = 0.0) -> Path:
    """Make the holder of a claim one on another machine; return the claim's file."""
    [file] = (each for each in path.iterdir() if each.name.isdecimal())
    record = json.loads(file.read_text())
    record["process"] |= {"host": "far-away", "machine": "another boot"}
    changed = file.stat().st_mtime_ns - int(silent_for * 1e9)
    file.write_text(json.dumps(record))
    os.utime(file, ns=(changed, changed))
    return file


def claim_of_dead_process(path: Path, *, number: int = 1) -> Path:
    """Leave a claim whose process has ended, as a crash would."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    path.mkdir(parents=True, exist_ok=True)
    file = path / str(number)
    record = json.loads(claims._record(f"dead{number}", "crashing"))
    record["process"]["pid"] = ended.pid
    file.write_text(json.dumps(record))
    return file


def files(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir())


def try_to_take(path: Path) -> Claim | Holder:
    return claims._attempt(path, "trying")


def test_a_claim_keeps_others_out_and_says_who_holds_it(path):
    with (
        claim(path, doing="training nano") as held,
        pytest.raises(TakenError) as caught,
        claim(path, doing="the same", otherwise="use another --root"),
    ):
        pytest.fail("two hold it")
    message = str(caught.value)
    assert f"process {os.getpid()}" in message
    assert "training nano" in message
    assert message.endswith("wait for it, or use another --root")
    assert caught.value.holder in message
    assert not held.is_lost
    assert isinstance(caught.value, LockedError)
    assert pickle.loads(pickle.dumps(caught.value)).holder == caught.value.holder  # noqa: S301


def test_what_was_given_back_can_be_taken_again_and_leaves_one_small_file(path):
    for turn in range(1, 6):
        with claim(path, doing="work") as held:
            assert held.number == turn
            assert files(path) == [str(turn)]
        assert files(path) == [f"{turn}.free"]
        assert (path / f"{turn}.free").read_bytes() == b""
    assert find_holder(path) is None


def test_a_failure_within_gives_the_claim_back(path):
    with pytest.raises(ZeroDivisionError), claim(path, doing="work"):
        raise ZeroDivisionError
    with claim(path, doing="work"):
        pass


def test_find_holder_tells_of_the_living_only(path, tmp_path):
    assert find_holder(path) is None
    with claim(path, doing="work"):
        holder = find_holder(path)
        assert holder is not None
        assert (holder.doing, holder.is_alive) == ("work", True)
    claim_of_dead_process(tmp_path / "dead")
    assert find_holder(tmp_path / "dead") is None


def test_eight_processes_take_turns(tmp_path):
    # 8 x 200 increments of a counter by read and write: any overlap loses one, or finds `inside`.
    (tmp_path / "counter").write_text("0")
    contenders = [
        subprocess.Popen([sys.executable, "-c", CONTENDER, str(tmp_path), "200"]) for _ in range(8)
    ]
    assert [contender.wait() for contender in contenders] == [0] * 8
    assert (tmp_path / "counter").read_text() == "1600"
    assert files(tmp_path / "claim") == ["1600.free"]


def test_threads_of_one_process_take_turns(path):
    inside, most = 0, 0

    def turn(_: int) -> None:
        nonlocal inside, most
        with wait_for(path, doing="work"):
            inside += 1
            most = max(most, inside)
            time.sleep(0.001)
            inside -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(turn, range(40)))
    assert most == 1
    assert files(path) == ["40.free"]


def test_a_killed_holder_is_recognised_at_once(path):
    process = start_holder(path)
    with pytest.raises(TakenError, match="holding on"), claim(path, doing="work"):
        pytest.fail("two hold it")
    end(process)
    assert files(path) == ["1"]
    with claim(path, doing="work") as held:
        assert held.number == 2
        assert files(path) == ["2"]


def test_a_holder_that_nobody_collected_has_ended_all_the_same(path):
    process = start_holder(path)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
    with claim(path, doing="work") as held:
        assert held.number == 2
    end(process)


def test_another_process_with_the_same_number_is_not_the_holder(path):
    with claim(path, doing="work") as held:
        record = json.loads((path / "1").read_text())
        record["process"]["started"] = "1"  # before this process: the number was given out again
        (path / "1").write_text(json.dumps(record))
        assert find_holder(path) is None
        with claim(path, doing="taking over") as successor:
            held.beat()
            assert held.is_lost
            with pytest.raises(TakenError, match="took over") as caught:
                held.check()
            assert "taking over" in caught.value.holder
            successor.check()


def test_a_holder_elsewhere_is_gone_after_five_silent_minutes_of_our_clock(path, clock):
    claim_of_dead_process(path)
    move_elsewhere(path, silent_for=3600)
    assert isinstance(try_to_take(path), Holder)
    clock.now += STALE_SECONDS - 1
    assert isinstance(try_to_take(path), Holder)
    clock.now += 1
    taken = try_to_take(path)
    assert isinstance(taken, Claim)
    assert files(path) == ["2"]


def test_a_heartbeat_elsewhere_begins_the_five_minutes_anew(path, clock):
    claim_of_dead_process(path)
    file = move_elsewhere(path)
    assert isinstance(try_to_take(path), Holder)
    clock.now += STALE_SECONDS - 1
    os.utime(file)
    assert isinstance(try_to_take(path), Holder)
    clock.now += STALE_SECONDS - 1
    assert isinstance(try_to_take(path), Holder)
    clock.now += 1
    assert isinstance(try_to_take(path), Claim)


def test_a_holder_elsewhere_that_beats_is_not_waited_for(path):
    claim_of_dead_process(path)
    move_elsewhere(path, silent_for=30)
    with pytest.raises(TakenError, match="host far-away"), claim(path, doing="work"):
        pytest.fail("two hold it")


def test_a_silent_holder_elsewhere_is_watched_and_then_gone(path, clock, monkeypatch):
    claim_of_dead_process(path)
    move_elsewhere(path, silent_for=3600)
    slept, told = [], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.now += seconds

    monkeypatch.setattr(claims.time, "sleep", sleep)
    with claim(path, doing="work", say=told.append) as held:
        assert held.number == 2
    assert sum(slept) == STALE_SECONDS
    assert len(told) == 1
    assert "host far-away" in told[0]


def test_a_silent_holder_elsewhere_that_wakes_keeps_its_claim(path, clock, monkeypatch):
    claim_of_dead_process(path)
    file = move_elsewhere(path, silent_for=3600)

    def sleep(seconds: float) -> None:
        clock.now += seconds
        os.utime(file)

    monkeypatch.setattr(claims.time, "sleep", sleep)
    with pytest.raises(TakenError), claim(path, doing="work"):
        pytest.fail("two hold it")
    assert files(path) == ["1"]


def test_a_file_that_cannot_be_read_counts_as_a_silent_holder(path, clock):
    path.mkdir(parents=True)
    (path / "1").write_text("")
    assert isinstance(try_to_take(path), Holder)
    clock.now += STALE_SECONDS
    assert isinstance(try_to_take(path), Claim)


def test_a_paused_holder_elsewhere_loses_and_notices(path, clock):
    process = start_holder(path)
    process.send_signal(signal.SIGSTOP)
    move_elsewhere(path)
    assert isinstance(try_to_take(path), Holder)
    clock.now += STALE_SECONDS
    assert isinstance(try_to_take(path), Claim)
    process.send_signal(signal.SIGCONT)
    assert process.stdout is not None
    assert process.stdout.readline() == "lost\n"
    end(process)
    assert files(path) == ["2"]


def test_a_holder_that_lost_leaves_its_successor_alone(path, clock):
    with claim(path, doing="sleeping") as sleeper:
        move_elsewhere(path)
        assert isinstance(try_to_take(path), Holder)
        clock.now += STALE_SECONDS
        with claim(path, doing="work") as successor:
            assert not sleeper.is_lost
            sleeper.beat()
            assert sleeper.is_lost
            sleeper.release()
            assert files(path) == ["2"]
            successor.check()


def test_giving_back_without_having_noticed_leaves_the_successor_alone(path):
    # The sleeper looked for the last time before it was superseded.
    sleeper = try_to_take(path)
    assert isinstance(sleeper, Claim)
    move_elsewhere(path)
    (path / "2").write_text(claims._record("new", "work"))
    sleeper.release()
    assert files(path) == ["1.free", "2"]
    holder = find_holder(path)
    assert holder is not None
    assert (holder.number, holder.doing) == (2, "work")


@pytest.mark.parametrize("finished", [False, True], ids=["still held", "given back"])
def test_of_two_observers_of_a_dead_holder_one_wins(path, monkeypatch, finished):
    claim_of_dead_process(path)
    create, winners = claims._create, []

    def slow(file: Path, content: str, token: str) -> bool:
        # Between our look and our file, another observer does all of its part.
        monkeypatch.setattr(claims, "_create", create)
        winner = try_to_take(path)
        assert isinstance(winner, Claim)
        winners.append(winner)
        if finished:
            winner.release()
        return create(file, content, token)

    monkeypatch.setattr(claims, "_create", slow)
    outcome = try_to_take(path)
    [winner] = winners
    if finished:
        # Its number was used; ours is the next.
        assert isinstance(outcome, Claim)
        assert (winner.number, outcome.number) == (2, 3)
        assert files(path) == ["3"]
    else:
        assert isinstance(outcome, Holder)
        assert outcome.token == winner.token
        winner.check()


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_who_comes_late_with_an_old_number_withdraws(path, monkeypatch, turns):
    # We saw nothing and want 1. Meanwhile others took and gave back 1, 2, ..., and one holds.
    create, now = claims._create, []

    def slow(file: Path, content: str, token: str) -> bool:
        monkeypatch.setattr(claims, "_create", create)
        for _ in range(turns):
            with claim(path, doing="work"):
                pass
        holder = try_to_take(path)
        assert isinstance(holder, Claim)
        now.append(holder)
        made = create(file, content, token)
        assert made  # number 1 is no longer there: nothing but the second look keeps us out
        return made

    monkeypatch.setattr(claims, "_create", slow)
    outcome = try_to_take(path)
    [holder] = now
    assert isinstance(outcome, Holder)
    assert outcome.token == holder.token
    holder.check()
    assert files(path) == [str(turns + 1)]


def test_a_late_one_that_dies_before_it_withdraws_harms_nobody(path):
    with claim(path, doing="first"):
        pass
    with claim(path, doing="second") as held:
        claim_of_dead_process(path, number=1)
        held.beat()
        held.check()
        assert isinstance(try_to_take(path), Holder)
    with claim(path, doing="third"):
        assert files(path) == ["3"]


def test_a_lost_reply_is_no_harm(path, monkeypatch):
    link = os.link

    def link_and_fail(source: Path, target: Path) -> None:
        link(source, target)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(claims.os, "link", link_and_fail)
    assert isinstance(try_to_take(path), Claim)
    assert files(path) == ["1"]


def test_without_links_files_are_created_exclusively(path, monkeypatch):
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(claims.os, "link", refuse)
    with claim(path, doing="work"):
        assert isinstance(try_to_take(path), Holder)
        assert files(path) == ["1"]
    with claim(path, doing="work") as held:
        assert held.number == 2


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_cannot_be_written_is_told(path, monkeypatch, code):
    def refuse(self: Path, *args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(StudyError, match=os.strerror(code)) as caught, claim(path, doing="work"):
        pytest.fail("held without a file")
    assert str(path) in str(caught.value)
    assert "free some space" in str(caught.value)
    assert files(path) == []


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "work").touch()
    with pytest.raises(DataError, match="a file stands where"), claim(tmp_path / "work", doing="x"):
        pytest.fail("held")


def test_a_folder_is_held_by_the_claim_in_it(tmp_path):
    folder = tmp_path / "study"
    with exclusive_folder(folder, doing="running this study", otherwise="use another --root"):
        holder = find_holder(folder / ".claim")
        assert holder is not None
        assert holder.doing == "running this study"
        with pytest.raises(TakenError, match="use another --root"):
            exclusive_folder(folder, doing="x", otherwise="use another --root").__enter__()
    (tmp_path / "file").touch()
    with pytest.raises(BiphasicError, match="choose another folder"):
        exclusive_folder(tmp_path / "file", doing="x", otherwise="wait").__enter__()


def test_heartbeats_come_by_themselves(path, monkeypatch):
    monkeypatch.setattr(claims, "HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr(claims, "_PULSE", claims._Pulse())
    with claim(path, doing="work") as held:
        os.utime(path / "1", (0, 0))
        deadline = time.monotonic() + 30
        while (path / "1").stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (path / "1").stat().st_mtime > 0
        assert not held.is_lost


def test_waiting_ends_when_the_claim_is_free(path):
    told: list[str] = []

    def work() -> int:
        with wait_for(path, doing="work", say=told.append) as held:
            return held.number

    with ThreadPoolExecutor(1) as pool:
        with claim(path, doing="going first"):
            waiting = pool.submit(work)
            while not told:
                time.sleep(0.01)
            assert not waiting.done()
        assert waiting.result(timeout=30) == 2
    assert len(told) == 1
    assert "going first" in told[0]


@pytest.mark.parametrize("pid", ["7", 7.0, True, None, [7], 0, -1, 1 << 31, 10**400])
def test_odd_numbers_of_processes_are_no_name(tmp_path, pid):
    with claim(tmp_path / "c", doing="working"):
        [file] = (tmp_path / "c").iterdir()
        record = json.loads(file.read_text())
        record["process"]["pid"] = pid
        file.write_text(json.dumps(record))
        holder = find_holder(tmp_path / "c")
        assert holder is not None
        assert str(holder) == "a process that left no name"
