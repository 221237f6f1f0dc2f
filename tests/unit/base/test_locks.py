"""One process at a time holds a lock, even when others crash, sleep or come late."""

import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import filelock
import pytest

from biphasic import locks
from biphasic.errors import DataError, LockedError, LockHeldError, StudyError
from biphasic.locks import (
    LEASES,
    LOCK,
    find_owner,
    hold,
    lock_cleaning,
    lock_work,
    refuse_while_cleaning,
    running_work,
    sole_writer,
    this_process,
)

CONTENDER = """
import sys
from pathlib import Path
from biphasic import locks
locks._LONGEST_POLL = 0.02
folder, turns = Path(sys.argv[1]), int(sys.argv[2])
for _ in range(turns):
    with locks.lock_work(folder, "work", wait="counting") as held:
        inside = folder / "inside"
        inside.touch(exist_ok=False)
        counter = folder / "counter"
        counter.write_text(str(int(counter.read_text()) + 1))
        held.check()
        inside.unlink()
"""

OWNER = """
import sys, time
from pathlib import Path
from biphasic import locks
locks.HEARTBEAT_SECONDS, locks.LEASE_SECONDS = 0.05, float(sys.argv[2])
with locks.hold(Path(sys.argv[1])) as held:
    print("held", flush=True)
    while not held.is_lost:
        time.sleep(0.01)
print("lost", flush=True)
"""


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / LEASES / "work"


@pytest.fixture
def short_lease(monkeypatch) -> None:
    monkeypatch.setattr(locks, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(locks, "LEASE_SECONDS", 0.5)


def start_owner(path: Path, lease: float = locks.LEASE_SECONDS) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(path), str(lease)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def ended_pid() -> int:
    """Return the id of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        return ended.pid


def edit(path: Path, **fields: object) -> None:
    """Write a lock whose owner differs from this process in some fields."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        with filelock.SoftFileLease(path, lease_duration=locks.LEASE_SECONDS):
            text = path.read_text()
    else:
        text = path.read_text()
    for key, value in fields.items():
        text = re.sub(f"^{key}=.*$", f"{key}={value}", text, flags=re.MULTILINE)
    path.write_text(text)


def test_a_lock_keeps_others_out_and_names_its_owner(path):
    host, pid = this_process()
    with (
        hold(path),
        pytest.raises(LockHeldError) as caught,
        hold(path, remedy="use another folder"),
    ):
        pytest.fail("two hold it")
    assert f"another process holds it: host {host}, process {pid}; wait for it, or use another" in (
        str(caught.value)
    )
    assert caught.value.owner == f"host {host}, process {pid}"
    assert not list(path.parent.iterdir())


def test_a_failure_within_releases_the_lock(path):
    with pytest.raises(RuntimeError), hold(path):
        raise RuntimeError
    with hold(path) as held:
        held.check()


def test_find_owner_finds_the_living_only(path):
    assert find_owner(path) is None
    with hold(path):
        owner = find_owner(path)
        assert owner is not None
        assert (owner.host, owner.pid, owner.is_here) == (*this_process(), True)
    assert find_owner(path) is None
    edit(path, pid=ended_pid())
    before = path.read_bytes()
    assert find_owner(path) is None
    assert path.read_bytes() == before


def test_six_processes_take_turns(tmp_path):
    # Increments of a counter by read and write: any overlap loses one, or finds `inside`.
    (tmp_path / "counter").write_text("0")
    contenders = [
        subprocess.Popen([sys.executable, "-c", CONTENDER, str(tmp_path), "50"]) for _ in range(6)
    ]
    assert [contender.wait() for contender in contenders] == [0] * 6
    assert (tmp_path / "counter").read_text() == "300"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["counter"]


def test_threads_of_one_process_take_turns(path):
    inside, most = 0, 0

    def turn(_: int) -> None:
        nonlocal inside, most
        with hold(path, wait="counting"):
            inside += 1
            most = max(most, inside)
            time.sleep(0.001)
            inside -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(turn, range(24)))
    assert most == 1


def test_the_lock_of_a_killed_process_is_taken_over_at_once(path):
    process = start_owner(path)
    with pytest.raises(LockHeldError, match=f"process {process.pid}"), hold(path):
        pytest.fail("two hold it")
    end(process)
    with hold(path) as held:
        held.check()


WRITER = """
import sys, time
from pathlib import Path
from biphasic import locks
path = Path(sys.argv[1])
with locks.sole_writer(path):
    path.with_name(f".partial-{path.name}-01234567").mkdir()
    print("held", flush=True)
    time.sleep(100)
"""


def test_a_file_has_one_writer_who_deletes_what_killed_ones_left(tmp_path):
    path = tmp_path / "out"
    others = {tmp_path / ".partial-out-2-01234567", tmp_path / ".partial-other-01234567"}
    for other in others:
        other.touch()
    command = [sys.executable, "-c", WRITER, str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    refused = pytest.raises(LockHeldError, match="wait for it, or choose another name")
    with refused, sole_writer(path):
        pytest.fail("two hold it")
    end(process)
    assert (tmp_path / ".partial-out-01234567").exists()
    with sole_writer(path):
        assert not (tmp_path / ".partial-out-01234567").exists()
    assert set(tmp_path.iterdir()) == others


def test_the_lock_of_a_zombie_is_taken_over_when_its_lease_expires(path, short_lease):
    process = start_owner(path, lease=0.5)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
    time.sleep(0.2)  # longer than three heartbeats
    said = []
    with hold(path, say=said.append) as held:
        held.check()
    assert len(said) == 1
    end(process)


def test_another_process_with_the_same_pid_is_not_the_owner(path):
    with hold(path) as held:
        edit(path, start="1")  # before this process: the pid was given out again
        assert find_owner(path) is None
        with hold(path) as successor:
            with pytest.raises(LockHeldError, match="another process took over"):
                held.check()
            successor.check()
        assert not path.exists()


@pytest.mark.parametrize("last", [0, 2**31])  # long ago, or before the clock was set back
@pytest.mark.parametrize("host", ["far-away", "{here}?pidns-f00"])
def test_an_owner_elsewhere_is_taken_over_when_its_lease_expires(path, short_lease, host, last):
    edit(path, host=host.format(here=this_process()[0]), pid=ended_pid())
    owner = find_owner(path)
    assert owner is not None  # its pid says nothing here
    assert not owner.is_here
    with pytest.raises(LockHeldError), hold(path):
        pytest.fail("its last heartbeat was just now")
    os.utime(path, (last, last))
    begin, said = time.monotonic(), []
    with hold(path, say=said.append) as held:
        held.check()
    assert time.monotonic() - begin >= locks.LEASE_SECONDS
    assert "taking over if it sends no heartbeat" in said[0]


def test_an_owner_elsewhere_that_gives_a_heartbeat_keeps_its_lock(path, short_lease):
    edit(path, host="far-away")
    os.utime(path, (0, 0))
    beat = threading.Timer(0.2, lambda: os.utime(path))
    beat.start()
    with pytest.raises(LockHeldError, match="host far-away"), hold(path):
        pytest.fail("two hold it")
    beat.join()


def test_a_paused_owner_loses_the_lock_and_notices(path, short_lease):
    process = start_owner(path, lease=0.5)
    process.send_signal(signal.SIGSTOP)
    with hold(path, wait="waiting") as held:
        process.send_signal(signal.SIGCONT)
        assert process.stdout is not None
        assert process.stdout.readline() == "lost\n"
        process.wait()
        held.check()  # the loser left the lock of its successor alone
    end(process)


def test_heartbeats_come_by_themselves(path, monkeypatch):
    monkeypatch.setattr(locks, "HEARTBEAT_SECONDS", 0.02)
    with hold(path):
        os.utime(path, (0, 0))
        deadline = time.monotonic() + 20
        while path.stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert path.stat().st_mtime > 0


@pytest.mark.parametrize("content", ["not a lock\n", "filelock/2\npid=0\nhost=h\nmode=lease\n"])
def test_a_file_that_names_no_owner_is_replaced(path, content):
    path.parent.mkdir()
    path.write_text(content)
    os.utime(path, (0, 0))
    assert str(find_owner(path)) == "an unknown process"
    with hold(path) as held:
        held.check()


def test_an_empty_file_is_named_and_replaced_when_its_lease_expires(path, short_lease):
    """Its owner was killed before it wrote its name, or the power failed."""
    path.parent.mkdir()
    path.touch()
    with pytest.raises(LockHeldError, match="an unknown process; wait for it"), hold(path):
        pytest.fail("its owner may be about to write its name")
    os.utime(path, (0, 0))
    begin = time.monotonic()
    with hold(path) as held:
        held.check()
    assert time.monotonic() - begin >= locks.LEASE_SECONDS
    path.touch()
    with hold(path, wait="waiting") as held:
        held.check()


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EROFS, "make the folder writable"),
        (errno.EACCES, "make the folder writable"),
    ],
)
def test_a_disk_that_cannot_be_written_is_named(path, monkeypatch, code, remedy):
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(filelock.SoftFileLease, "_acquire", fail)
    with pytest.raises(StudyError, match=rf"^{path.parent}: cannot lock .*; {remedy}"):
        hold(path).__enter__()


def test_a_dead_owner_on_a_disk_that_cannot_be_written_is_named(path, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    edit(path, pid=ended_pid())
    # filelock suppresses this error, and tries again for ever.
    monkeypatch.setattr(filelock.SoftFileLease, "_take_over", fail)
    monkeypatch.setattr(Path, "write_bytes", fail)
    monkeypatch.setattr(locks, "find_owner", lambda _: None)
    with pytest.raises(StudyError, match=r"cannot lock .*Read-only file system"):
        hold(path).__enter__()


def test_a_file_at_the_path_is_named(path, tmp_path):
    path.mkdir(parents=True)
    with pytest.raises(DataError, match="delete what blocks the path"):
        hold(path).__enter__()
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(DataError, match="is a file, not a folder"):
        hold(file / LOCK, remedy="").__enter__()


def test_a_folder_is_held_by_the_lock_in_it(tmp_path):
    folder = tmp_path / "new" / "folder"
    with hold(folder / LOCK, remedy="choose another folder"):
        assert find_owner(folder / LOCK) is not None
        with pytest.raises(LockHeldError, match=f"^{folder}: .* or choose another folder"):
            hold(folder / LOCK, remedy="choose another folder").__enter__()
    assert not list(folder.iterdir())


def test_waiting_ends_when_the_lock_is_free(path):
    said: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        with hold(path):
            waiter = pool.submit(lambda: hold(path, wait="reading", say=said.append))
            held = waiter.result()
            entering = pool.submit(held.__enter__)
            deadline = time.monotonic() + 20
            while not said and time.monotonic() < deadline:
                time.sleep(0.01)
        entering.result(timeout=20)
        pool.submit(held.__exit__, None, None, None).result()
    host, pid = this_process()
    assert said == [f"waiting for host {host}, process {pid}, which is reading"]


def test_work_is_locked_by_name(tmp_path):
    with lock_work(tmp_path, "a"):
        with lock_work(tmp_path, "b"):
            assert sorted(running_work(tmp_path)) == ["a", "b"]
        with pytest.raises(LockHeldError):
            lock_work(tmp_path, "a").__enter__()
        assert list(running_work(tmp_path)) == ["a"]
    assert running_work(tmp_path) == {}


def test_no_other_process_begins_to_work_in_a_store_that_is_cleaned(tmp_path, monkeypatch):
    def work():
        yield lock_work(tmp_path, "a")
        yield lock_work(tmp_path, "a", wait="making a")

    with lock_cleaning(tmp_path):
        for held in work():  # the cleaner may look at what studies need, which can make tasks
            with held:
                pass
        monkeypatch.setattr(locks, "this_process", lambda: ("far-away", 1))
        for held in work():
            with pytest.raises(LockedError, match=r"being cleaned .* 'biphasic study clean'"):
                held.__enter__()
        assert running_work(tmp_path) == {}  # what was refused holds nothing
        with pytest.raises(LockHeldError):
            lock_cleaning(tmp_path).__enter__()
    refuse_while_cleaning(tmp_path)


def test_the_cleaner_sees_work_that_began_before(tmp_path):
    with lock_work(tmp_path, "a"), pytest.raises(LockedError, match="another process works here"):
        lock_cleaning(tmp_path).__enter__()
