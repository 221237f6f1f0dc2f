"""Locks that give one process at a time a piece of work, on local and shared file systems.

A lock is a `filelock.SoftFileLease`, taken over at once if the owner's process has ended on the
same machine, and elsewhere after `LEASE_SECONDS` without a heartbeat, by the observer's own clock.

A lease does not stop an owner that was only suspended. This is safe: results are named by their
content and renamed into place atomically, so both processes write the same bytes. The suspended
owner stops at its next progress report (`execution.job.while_held`).
"""

from __future__ import annotations

import errno
import os
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from filelock import LeaseSettingsMismatch, SoftFileLease, Timeout

from biphasic.amounts import rough_duration
from biphasic.errors import PERMIT, DataError, LockedError, LockHeldError, StudyError
from biphasic.files import PARTIAL, remove, remove_partials

HEARTBEAT_SECONDS = 20.0  # seconds between heartbeats of an owner
LEASE_SECONDS = 300.0  # seconds without a heartbeat after which another process takes the lock over
LOCK = ".lock"  # name of the lock file of a folder, inside it
LEASES = "leases"  # folder of a store with a lock for each piece of work in progress
_CLEANING = ".cleaning"
_LONGEST_POLL = 2.0
_NAMESPACE = "?pidns-"  # precedes the process namespace of a container in filelock's host names

Say = Callable[[str], None]


@dataclass(frozen=True)
class Owner:
    """The process that holds a lock."""

    heartbeat: float  # time of its last heartbeat, in seconds on the file system's clock
    host: str = ""  # name of its machine; empty if the file cannot be read
    pid: int = 0  # its process id there
    token: str = ""  # identifies this acquisition of the lock
    is_here: bool = False  # it runs on this machine, where filelock can check that it is alive

    def __str__(self) -> str:
        return f"host {self.host}, process {self.pid}" if self.host else "an unknown process"

    @property
    def seems_alive(self) -> bool:
        """Whether it runs on this machine, or its last heartbeat elsewhere is recent."""
        return self.is_here or time.time() - self.heartbeat < LEASE_SECONDS


class Lock:
    """A lock that this process holds."""

    def __init__(self, lease: SoftFileLease) -> None:
        """Describe a lease that this process has acquired."""
        self._lease = lease
        self._path = Path(lease.lock_file)

    @property
    def is_lost(self) -> bool:
        """Whether another process took the lock over, as of the last heartbeat."""
        return self._lease.compromise is not None

    def check(self) -> None:
        """Read the lock's file, and check that it still names this process."""
        record = self._lease.owner
        if self.is_lost or record is None or record.token != self._lease.token:
            owner = find_owner(self._path)
            raise LockHeldError(
                f"{self._path}: another process took over, because this one sent no heartbeat for "
                f"{rough_duration(LEASE_SECONDS)}; run again to resume",
                "another process" if owner is None else str(owner),
            )


@contextmanager
def hold(path: Path, *, wait: str = "", remedy: str = "", say: Say | None = None) -> Iterator[Lock]:
    """Hold a lock while the block runs; if another process holds it, wait or fail.

    `wait` says what the other process does, and `say` then names it; check again afterwards what is
    finished. Without it, fail, unless the owner has missed some heartbeats: wait for its next one
    or until its lease expires. `remedy` is an alternative to waiting.
    """
    lease = _lease(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _acquire(lease, path, wait, remedy, say or (lambda _: None))
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        if file := next((parent for parent in path.parents if parent.is_file()), None):
            raise DataError(f"{file}: is a file, not a folder; choose another folder") from None
        raise DataError(f"{path}: cannot create a lock file; delete what blocks the path") from None
    except OSError as error:
        raise _unusable(path.parent, error) from error
    try:
        yield Lock(lease)
    finally:
        try:
            lease.release()
        except OSError as error:
            raise _unusable(path.parent, error) from error


def _acquire(lease: SoftFileLease, path: Path, wait: str, remedy: str, say: Say) -> None:
    first: Owner | None = None
    last: Owner | None = None
    began = since = pause = 0.0
    while True:
        try:
            lease.acquire(timeout=0)
        except (Timeout, LeaseSettingsMismatch):
            owner, now = find_owner(path), time.monotonic()
        else:
            return
        if owner is None:  # released since, or about to be taken over
            # filelock hides why it cannot take over: a full disk, or a read-only one.
            _now(path.parent)
            time.sleep(0.01)
            continue
        if owner != last:
            last, since = owner, now
        if now - since > LEASE_SECONDS and _is_empty(path):
            # Its owner was killed before it wrote its name; filelock waits for it for ever.
            path.unlink(missing_ok=True)
            continue
        if not wait:
            # A heartbeat far in the future was sent before the clock was set back.
            is_fresh = abs(_now(path.parent) - owner.heartbeat) < 3 * HEARTBEAT_SECONDS
            is_late = first is not None and now - began > LEASE_SECONDS + HEARTBEAT_SECONDS
            if is_fresh or is_late or owner != (first or owner):
                raise _held(path, owner, remedy)
        if first is None:
            first, began = owner, now
            lease_text = f"if it sends no heartbeat for {rough_duration(LEASE_SECONDS)}"
            held = f"{path}: held by {owner}; taking over {lease_text}"
            say(f"waiting for {owner}, which is {wait}" if wait else held)
        pause = min(1.5 * pause or 0.02, _LONGEST_POLL)
        time.sleep(pause)


def _held(path: Path, owner: Owner, remedy: str) -> LockHeldError:
    what = path.parent if path.name == LOCK else path
    wait = f"wait for it, or {remedy}" if remedy else "wait for it"
    if not owner.host and not _is_empty(path):  # an empty one is being written
        wait = f"if no process works here, delete {path}"
    return LockHeldError(f"{what}: another process holds it: {owner}; {wait}", str(owner))


def find_owner(path: Path) -> Owner | None:
    """Return the owner of a lock; None if it is free or its owner on this machine has exited."""
    # Nothing is written beside the lock: it may be in a read-only folder.
    try:
        content, heartbeat = path.read_bytes(), path.stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        problem = f"cannot see who holds this lock ({error.strerror})"
        raise LockedError(f"{path}: {problem}; {PERMIT}") from None
    except OSError:
        # A network file system fails at times; to take the lock as held is safe.
        return Owner(heartbeat=time.time())
    # filelock only checks for a dead owner while acquiring, so acquire a copy.
    with tempfile.TemporaryDirectory(prefix="biphasic-lock-") as scratch:
        copy = Path(scratch, "copy")
        copy.write_bytes(content)
        lease = _lease(copy)
        # Read before: an acquired copy names this process.
        record = lease.owner
        try:
            lease.acquire(timeout=0)
        except (Timeout, LeaseSettingsMismatch):
            pass
        else:
            lease.release()
            return None
    if record is None:
        return Owner(heartbeat=heartbeat)
    host, _, _ = record.hostname.partition(_NAMESPACE)
    is_here = record.hostname == _host_name()
    return Owner(heartbeat, host, record.pid, record.token or "", is_here)


def this_process() -> tuple[str, int]:
    """Return host and process id of this process, as its locks name it."""
    return _host_name().partition(_NAMESPACE)[0], os.getpid()


@contextmanager
def sole_writer(path: Path, *, say: Say | None = None) -> Iterator[None]:
    """Let one process at a time write a file or folder; delete what killed ones left beside it."""
    holder = path.with_name(f"{PARTIAL}{path.name}.lock")
    # Beside the file: a folder that does not exist yet has no place for a lock inside.
    with hold(holder, remedy="choose another name", say=say):
        remove_partials(path.parent, path.name)
        yield


@contextmanager
def lock_work(store: Path, name: str, *, wait: str = "", say: Say | None = None) -> Iterator[Lock]:
    """Lock a piece of work in a store while the block runs; `wait` as in `hold`.

    A worker locks its work, then checks for a cleaning; a cleaning locks the store, then checks for
    work. At least one of them therefore detects the other.
    """
    with hold(store / LEASES / name, wait=wait, say=say) as held:
        refuse_while_cleaning(store)
        yield held


def refuse_while_cleaning(store: Path) -> None:
    """Refuse to work in a store while another process cleans it."""
    owner = find_owner(store / _CLEANING)
    if owner is not None and (owner.host, owner.pid) != this_process():
        raise LockedError(
            f"{store}: being cleaned ({owner}); run again when 'biphasic study clean' has ended"
        )


@contextmanager
def lock_cleaning(store: Path, *, say: Say | None = None) -> Iterator[Callable[[Path], None]]:
    """Lock a store where no process works; yield a function that deletes a file or folder."""
    with hold(store / _CLEANING) as held:
        refuse_running_work(store, say=say)

        def delete(path: Path) -> None:
            held.check()  # after a suspension, another process may work here
            remove(path)

        yield delete


def refuse_running_work(store: Path, *, say: Say | None = None) -> None:
    """Raise a LockedError if another process works in a store."""
    for name in running_work(store):
        what = f"{store}: another process works here"
        refuse_locked(store / LEASES / name, what, "wait for it", say=say)


def refuse_locked(path: Path, what: str, remedy: str, *, say: Say | None = None) -> None:
    """Refuse if a lock is held; wait to see whether a remote owner's lease has expired."""
    try:
        with hold(path, say=say):
            return
    except LockHeldError as error:
        raise LockedError(f"{what} ({error.owner}); {remedy}") from None


def running_work(store: Path) -> dict[str, Owner]:
    """Return the owners of running work in a store, by name of the work."""
    leases = store / LEASES
    if not leases.is_dir():
        return {}
    # Probes of the clock (`_now`) lie beside the locks for a moment.
    paths = (path for path in sorted(leases.iterdir()) if not path.name.startswith(PARTIAL))
    owners = ((path.name, find_owner(path)) for path in paths)
    return {name: owner for name, owner in owners if owner is not None}


def _is_empty(path: Path) -> bool:
    with suppress(FileNotFoundError):
        return path.stat().st_size == 0
    return False


def _now(folder: Path) -> float:
    """Return the time on the clock of a folder's file system; an OSError if it is not writable."""
    probe = folder / f"{PARTIAL}{uuid.uuid4().hex}"
    try:
        probe.write_bytes(b"\n")
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _lease(path: Path) -> SoftFileLease:
    # Not by thread: a thread of jobs may check and release what the main one acquired.
    return SoftFileLease(
        path, lease_duration=LEASE_SECONDS, heartbeat_interval=HEARTBEAT_SECONDS, thread_local=False
    )


@lru_cache(maxsize=1)
def _host_name() -> str:
    """Return the name of this machine as filelock writes it, with the process namespace."""
    with tempfile.TemporaryDirectory(prefix="biphasic-lock-") as scratch:
        lease = _lease(Path(scratch, "own"))
        lease.acquire()
        record = lease.owner
        lease.release()
    return socket.gethostname() if record is None else record.hostname


def _unusable(folder: Path, error: OSError) -> StudyError:
    is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
    remedy = "free some space" if is_full else "make the folder writable, or name another one"
    where = f"{folder.absolute()}: cannot lock there"
    return StudyError(f"{where} ({error.strerror or error}); {remedy}")
