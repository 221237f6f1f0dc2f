"""Claims: one process at a time does a piece of work, on local and on shared file systems.

A claim is a folder in which files are numbered. The highest number holds it, unless it ends in
`.free`. Whoever wants a claim that is free, or whose holder is gone, makes the next number and
then looks again: only if no other file has its number or a higher one does it hold the claim. It
removes the lower ones. Giving back renames `N` to `N.free`; that file stays.

Why no two hold it:

- *Two want the same number.* The file is made by a hard link to a finished one, or by exclusive
  creation where there are no links; a server grants that to one of them. Replies that get lost
  are no harm: who is told "exists" reads whose it is.
- *Somebody acts on an old look.* The highest number never falls: a file goes only after one with
  a higher number is there, and what was given back stays as `N.free`. So the late one, making a
  number that was used before, finds a higher or equal one when it looks again, and withdraws.
  A fresh claim is never removed by anybody but its holder's successors.
- *A holder that was only asleep.* Nothing can stop it from waking, but the next number tells it:
  `Claim.is_lost`. What it finishes is named by content and put in place whole, so both leave the
  same bytes.

A holder is gone if its process is, where that can be seen: same machine since the same boot, same
process namespace, and no process that began at the same moment has its number. That needs no
waiting. Of a process elsewhere we know its heartbeat, the time of last change of its file: if
nothing changed for five minutes of our own clock, it is gone. Clocks of two machines are never
compared. Five minutes are more than attributes are cached by network file systems (a minute) and
than several lost heartbeats.

Nothing is flushed: after a crash of the machine its claims are worth nothing anyway. A file that
cannot be read counts as a process elsewhere that says nothing.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

from biphasic.errors import DataError, StudyError, TakenError
from biphasic.files import PARTIAL
from biphasic.process import ProcessName, is_alive, parse_process, this_process

HEARTBEAT_SECONDS = 20.0
"""Between signs of life of a holder."""
STALE_SECONDS = 300.0
"""Without a sign of life, on the observer's clock, after which a holder elsewhere is gone."""
CLAIM = ".claim"
"""Name of the claim on the folder that it is in."""
FREE = ".free"
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}
_LONGEST_POLL = 2.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Holder:
    """Who has a claim.

    Attributes:
        number: Of its file.
        token: Of this claim alone.
        process: Who; None if the file cannot be read.
        doing: What for.
        since: UTC, on its own clock.
        changed: Its file's time of last change, in nanoseconds on the file system's clock.
        is_alive: None where that cannot be seen from here.
    """

    number: int
    token: str
    process: ProcessName | None
    doing: str
    since: str
    changed: int
    is_alive: bool | None

    def __str__(self) -> str:
        if self.process is None:
            return "a process that left no name"
        return f"{self.process}, since {self.since}, {self.doing}"


class Claim:
    """A claim that this process holds."""

    def __init__(self, path: Path, number: int, token: str) -> None:
        """Describe the claim that file `number` of folder `path` gives."""
        self.path, self.number, self.token = path, number, token
        self._pid = os.getpid()
        self._is_lost = False

    @property
    def is_lost(self) -> bool:
        """Whether another process took it, for this one seemed gone; as of the last heartbeat."""
        return self._is_lost

    def check(self) -> None:
        """Look whether the claim still holds.

        Raises:
            TakenError: Another process took it.
        """
        self._look()
        if self._is_lost:
            holder = find_holder(self.path)
            raise TakenError(
                f"{self.path}: this process was silent for so long that another one took over; "
                "run again to go on from what is finished",
                "another process" if holder is None else str(holder),
            )

    def beat(self) -> None:
        """Give a sign of life, and look whether the claim still holds."""
        with suppress(OSError):  # a server that does not answer now may do so next time
            os.utime(self._file)
        self._look()

    def release(self) -> None:
        """Give the claim back."""
        if self._is_lost or os.getpid() != self._pid:
            return
        free = self._file.with_name(f"{self.number}{FREE}")
        try:
            self._file.rename(free)
        except FileNotFoundError:
            self._is_lost = True
        except OSError as error:
            raise _unusable(self.path, error) from error
        with suppress(OSError):  # gone already: the next one holds it
            os.truncate(free, 0)  # names of machines do not stay behind

    @property
    def _file(self) -> Path:
        return self.path / str(self.number)

    def _look(self) -> None:
        with suppress(OSError):
            numbers = _numbers(self.path)
            self._is_lost = self._is_lost or max(numbers, default=0) != self.number


@contextmanager
def claim(
    path: Path, *, doing: str, otherwise: str = "", say: Say | None = None
) -> Iterator[Claim]:
    """Hold a claim while the block runs, or say at once who holds it.

    Only where the holder is elsewhere and has been silent for some heartbeats is it watched: until
    it gives a sign of life, or for five minutes, after which it is gone.

    Args:
        path: Folder of the claim; made where it is missing. Nothing else may be in it.
        doing: What for, to be read after "process 12, since noon, ".
        otherwise: What others could do instead of waiting; ends the message.
        say: Told when a silent holder is watched.

    Raises:
        TakenError: A process that lives holds it.
        StudyError: Nothing can be written there.
    """
    is_told = False
    while isinstance(found := _attempt(path, doing), Holder):
        if found.is_alive or _age(path, found) < 3 * HEARTBEAT_SECONDS:
            remedy = f"wait for it, or {otherwise}" if otherwise else "wait for it"
            what = path.parent if path.name == CLAIM else path
            raise TakenError(f"{what}: another process holds it: {found}; {remedy}", str(found))
        if say is not None and not is_told:
            say(f"{path}: {found} is silent; taking over in {STALE_SECONDS / 60:.0f} minutes")
            is_told = True
        time.sleep(_LONGEST_POLL)
    with _holding(found):
        yield found


@contextmanager
def wait_for(path: Path, *, doing: str, say: Say | None = None) -> Iterator[Claim]:
    """Hold a claim while the block runs; wait until it is free.

    Look again at what is finished once it is held: the process before may have done the work.

    Args:
        path: Folder of the claim; made where it is missing. Nothing else may be in it.
        doing: What for, to be read after "process 12, since noon, ".
        say: Told once, if there is somebody to wait for.

    Raises:
        StudyError: Nothing can be written there.
    """
    pause, is_told = 0.02, False
    while isinstance(found := _attempt(path, doing), Holder):
        if say is not None and not is_told:
            say(f"waiting for {found}")
            is_told = True
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_POLL)
    with _holding(found):
        yield found


def find_holder(path: Path) -> Holder | None:
    """Return who holds a claim, as far as it is seen from here; None if it is free.

    A holder whose process is gone counts as none. One elsewhere is believed; see `silent_seconds`.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        holder = _holder(path, _numbers(path))
        return None if holder is not None and holder.is_alive is False else holder
    return None


@contextmanager
def exclusive_folder(folder: Path, *, doing: str, otherwise: str) -> Iterator[Claim]:
    """Hold a folder for this process, made where it is missing; the claim is `.claim` in it.

    Args:
        folder: The folder.
        doing: What this process does there, for messages to others.
        otherwise: What others could do instead of waiting.

    Raises:
        DataError: A file stands there.
        TakenError: Another process holds it.
        StudyError: Nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise DataError(f"{folder}: a file stands there; choose another folder") from None
    except OSError as error:
        raise _unusable(folder, error) from error
    with claim(folder / CLAIM, doing=doing, otherwise=otherwise) as held:
        yield held


@contextmanager
def _holding(held: Claim) -> Iterator[None]:
    _PULSE.add(held)
    try:
        yield
    finally:
        _PULSE.discard(held)
        held.release()


def _attempt(folder: Path, doing: str) -> Claim | Holder:
    """Take a claim that is free or whose holder is gone; otherwise return the holder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            numbers = _numbers(folder)
            holder = _holder(folder, numbers)
            if holder is not None and not _is_gone(folder, holder):
                return holder
            taken = _take(folder, max(numbers, default=0) + 1, doing)
            if taken is not None:
                return taken
    except (FileExistsError, NotADirectoryError):
        raise DataError(f"{folder}: a file stands where a claim belongs; delete it") from None
    except OSError as error:
        raise _unusable(folder, error) from error


def _take(folder: Path, number: int, doing: str) -> Claim | None:
    """Make a number; None if another process was first, or has gone on from there already."""
    token = uuid.uuid4().hex
    if not _create(folder / str(number), _record(token, doing), token):
        return None
    numbers = _numbers(folder)
    if max(numbers, default=0) != number or numbers[number] != [str(number)]:
        (folder / str(number)).unlink(missing_ok=True)
        return None
    for names in (names for other, names in numbers.items() if other < number):
        for name in names:
            (folder / name).unlink(missing_ok=True)
    _forget(folder)
    return Claim(folder, number, token)


def _create(path: Path, content: str, token: str) -> bool:
    """Make a file that is not there, whole at once; tell whether it was us."""
    partial = path.with_name(f"{PARTIAL}{token}")
    partial.write_text(content, encoding="utf-8")
    try:
        os.link(partial, path)
    except FileExistsError:
        # The reply to a first try may have been lost on the way.
        return _token_of(path) == token
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _create_directly(path, content)
    finally:
        partial.unlink(missing_ok=True)
    return True


def _create_directly(path: Path, content: str) -> bool:
    """Make a file on a system without links; for a moment it is there and empty."""
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(content)
    except FileExistsError:
        return False
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return True


def _record(token: str, doing: str) -> str:
    since = datetime.now(UTC).isoformat(" ", timespec="seconds")
    process = asdict(this_process())
    return json.dumps({"token": token, "doing": doing, "since": since, "process": process})


def _numbers(folder: Path) -> dict[int, list[str]]:
    """Return the files of a claim by number."""
    found: dict[int, list[str]] = {}
    for name in os.listdir(folder):  # noqa: PTH208 - names alone; paths would cost more than all
        number = name.removesuffix(FREE)
        if number.isdecimal():
            found.setdefault(int(number), []).append(name)
    return found


def _holder(folder: Path, numbers: dict[int, list[str]]) -> Holder | None:
    """Return who has the highest number; None if it was given back or is no longer there."""
    if not numbers:
        return None
    number = max(numbers)
    if numbers[number] != [str(number)]:
        return None
    file = folder / str(number)
    try:
        with file.open(encoding="utf-8", errors="replace") as stream:
            text, changed = stream.read(), os.fstat(stream.fileno()).st_mtime_ns
    except FileNotFoundError:
        return None
    return _parse(text, number=number, changed=changed)


def _parse(text: str, *, number: int, changed: int) -> Holder:
    try:
        record = json.loads(text)
        process = parse_process(record["process"])
        token, doing, since = (str(record[key]) for key in ("token", "doing", "since"))
    except (ValueError, LookupError, TypeError, RecursionError):
        return Holder(number, text, None, "", "", changed, is_alive=None)
    return Holder(number, token, process, doing, since, changed, is_alive=is_alive(process))


def _token_of(path: Path) -> str | None:
    holder = _holder(path.parent, {int(path.name): [path.name]})
    return None if holder is None else holder.token


# What this process has seen of holders elsewhere: their last sign of life, and when it saw that.
_SEEN: dict[Path, tuple[tuple[int, str, int], float]] = {}
_SEEN_LOCK = threading.Lock()


def _is_gone(folder: Path, holder: Holder) -> bool:
    if holder.is_alive is not None:
        return not holder.is_alive
    return silent_seconds(folder, holder) >= STALE_SECONDS


def silent_seconds(folder: Path, holder: Holder) -> float:
    """Return for how long this process has seen no sign of life of a holder elsewhere."""
    sign, now = (holder.number, holder.token, holder.changed), monotonic()
    with _SEEN_LOCK:
        known, first = _SEEN.get(folder, (None, now))
        if known != sign:
            _SEEN[folder] = (sign, now)
            return 0.0
    return now - first


def _forget(folder: Path) -> None:
    with _SEEN_LOCK:
        _SEEN.pop(folder, None)


def _age(folder: Path, holder: Holder) -> float:
    """Return how old a sign of life is, in seconds; both times are the file system's own."""
    probe = folder / f"{PARTIAL}{uuid.uuid4().hex}"
    try:
        probe.touch()
        return (probe.stat().st_mtime_ns - holder.changed) / 1e9
    except OSError as error:
        raise _unusable(folder, error) from error
    finally:
        probe.unlink(missing_ok=True)


def _unusable(folder: Path, error: OSError) -> StudyError:
    return StudyError(
        f"{folder}: no claim can be made or given back there ({error.strerror or error}); free "
        "some space, or make the folder writable"
    )


class _Pulse:
    """The heartbeats of all claims of this process, from one thread."""

    def __init__(self) -> None:
        self._claims: set[Claim] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, held: Claim) -> None:
        with self._lock:
            self._claims.add(held)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="claims", daemon=True)
                self._thread.start()

    def discard(self, held: Claim) -> None:
        with self._lock:
            self._claims.discard(held)

    def reset(self) -> None:
        """Begin anew in a child process: it has no threads, and its parent's claims not at all."""
        self._claims, self._thread = set(), None
        self._lock = threading.Lock()

    def _run(self) -> None:
        while True:
            time.sleep(HEARTBEAT_SECONDS)
            with self._lock:
                claims = list(self._claims)
            for held in claims:
                held.beat()


_PULSE = _Pulse()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_PULSE.reset)
