"""The kinds of faults: each a function that runs a trial's command and meddles with it.

A function returns whether the fault struck before the work was over. To add a kind, write such a
function and name it in `FAULTS`.
"""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from biphasic.store import MANIFEST
from soak.disk import Journal, after_operations, can_mount, mounted, slow
from soak.subjects import (
    NAME,
    SWITCH,
    Arm,
    Subject,
    content,
    copy_root,
    differences,
    family,
    is_alive,
    kill_all,
    set_compute,
    start,
    wait,
    wait_until_gone,
)

_EXPECTED = {0, 1, 2, 130, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGUSR1}
_ADVICE = (
    re.compile(r"delete the folder (/[^,;]+?)(?: and |,|;|$)"),
    re.compile(r"(/[^:]+): .*delete th(?:e|is) folder"),
    re.compile(r"(/[^:]+): .*delete it"),
    re.compile(r"delete (/[^;]+)$"),
)
_MOST_RUNS = 12
_DIVISIONS: tuple[dict[str, Any], ...] = (
    {"processes": 1},
    {"processes": 2},
    {"processes": 2, "shard": "full"},
    {"processes": 4},
    {"processes": 4, "shard": "full"},
    {"processes": 4, "shard": "hybrid", "shard_size": 2},
)
# A signal came while `warm.py` forked a process: Python ignores the signal's exception.
_FORKING = re.compile("Exception ignored in: <function _(after_fork|releaseLock)")


class FaultError(Exception):
    """The program did not do what it promises."""


class Trial:
    """A copy of a subject's root, and runs of its command there."""

    def __init__(self, subject: Subject, folder: Path, draw: random.Random) -> None:
        """Copy the root into a new folder."""
        self.subject, self.draw, self.folder = subject, draw, folder
        folder.mkdir(parents=True)
        self.root = copy_root(subject.start, folder / "root")
        self.is_over = False
        self.compute = _DIVISIONS[0]
        self._logs = 0

    @property
    def log(self) -> Path:
        """Return the output of the last run."""
        return self.folder / f"log-{self._logs}"

    def start(self, arm: Arm | None = None) -> int:
        """Start the command."""
        self._logs += 1
        return start(self.subject.arguments, self.root, self.log, arm=arm)

    def pause(self) -> None:
        """Let the command run until a random moment."""
        time.sleep(self.draw.uniform(0.02, 0.8 * self.subject.seconds))

    def operation(self) -> int:
        """Return a random number of operations, within those of a whole run."""
        return self.draw.randrange(self.subject.operations)

    def struck(self, code: int) -> bool:
        """Return whether a fault that marks itself struck in the run that ended."""
        return code != 0 or self.mark.exists()

    def checkpoints(self) -> set[str]:
        """Return the names of the checkpoints of the run so far."""
        return {path.name for path in self.root.glob("store/progress/*/step-*")}

    def divide_anew(self) -> None:
        """Let another number of processes resume a training, and draw how they hold its weights."""
        choices = [each for each in _DIVISIONS if each["processes"] != self.compute["processes"]]
        self.compute = self.draw.choice(choices)
        set_compute(self.root, self.subject.arguments[-1], self.compute)

    @property
    def mark(self) -> Path:
        """Return a file that faults make in processes that the command started."""
        return self.folder / f"struck-{self._logs}"

    def end(self, pid: int) -> int:
        """Wait for a run, and check how it ended."""
        code = wait(pid)
        text = self.log.read_text(errors="replace")
        is_ours = "Traceback" in text and not _FORKING.search(text)
        if is_ours or code not in _EXPECTED:
            raise FaultError(f"exit code {code}")
        self.is_over = code == 0
        return code

    def run(self, arm: Arm | None = None) -> int:
        """Run the command to its end."""
        return self.end(self.start(arm))

    def finish(self) -> None:
        """Run the command until it succeeds, and do what it says on the way."""
        for _ in range(_MOST_RUNS):
            if self.is_over or self.run() == 0:
                return self.clean()
            self.follow()
        raise FaultError("no end")

    def clean(self) -> None:
        """Delete remains of interrupted writes, as `study clean` does."""
        if (self.root / NAME / "report").is_dir():
            self._logs += 1
            clean = ("study", "clean", "--delete", "--root", "{}")
            self.end(start(clean, self.root, self.log))

    def follow(self) -> None:
        """Delete what the last run's error says to delete."""
        for line in self.log.read_text().splitlines():
            if line.startswith(("error: ", "damaged: ")):
                found = filter(None, (pattern.search(line) for pattern in _ADVICE))
                for match in found:
                    path = Path(match[1])
                    if "delete th" in line and not path.is_dir():
                        path = path.parent
                    if not path.is_relative_to(self.root):
                        raise FaultError(f"told to delete {path}: {line}")
                    _delete(path)
                    break

    def differences(self) -> list[str]:
        """Return the names of what differs from the uninterrupted run's."""
        subject = self.subject
        return differences(content(self.root), subject.expected, is_rounded=subject.is_rounded)


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


Inject = Callable[[Trial], bool]


def at_moment(strike: Callable[[Trial, int], None]) -> Inject:
    """Return what strikes the command's process, given its id, at a random moment."""

    def inject(trial: Trial) -> bool:
        pid = trial.start()
        trial.pause()
        others = family(pid)[1:]
        strike(trial, pid)
        code = trial.end(pid)
        wait_until_gone(others)
        return code != 0

    return inject


all_killed = at_moment(lambda _, pid: kill_all(pid))
# The other processes find themselves alone.
parent_killed = at_moment(lambda _, pid: os.kill(pid, signal.SIGKILL))


def signalled(number: signal.Signals) -> Inject:
    """Return what sends a signal to the command, or to all its processes as terminals do."""

    def strike(trial: Trial, pid: int) -> None:
        if trial.draw.random() < 0.5:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)

    return at_moment(strike)


def child_signalled(number: signal.Signals) -> Inject:
    """Return what sends a signal to one of the processes that the command started."""

    def inject(trial: Trial) -> bool:
        pid = trial.start()
        while not family(pid)[1:] and is_alive(pid):
            time.sleep(0.005)
        time.sleep(trial.draw.uniform(0, 0.5 * trial.subject.seconds))
        struck, others = False, family(pid)[1:]
        if others:
            with suppress(ProcessLookupError):
                os.kill(trial.draw.choice(others), number)
                struck = True
        trial.end(pid)
        wait_until_gone(others)
        return struck

    return inject


child_killed = child_signalled(signal.SIGKILL)
child_terminated = child_signalled(signal.SIGTERM)


def killed_at_operation(trial: Trial) -> bool:
    """SIGKILL before a file is created, renamed or deleted."""
    number, is_first = trial.operation(), not trial.draw.randrange(3)

    def strike() -> None:
        # Of several processes one, or all in turn.
        if not (is_first and trial.mark.exists()):
            trial.mark.touch()
            _kill_self()

    code = trial.run(lambda: after_operations(trial.root, number, strike))
    return trial.struck(code)


def _kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def divided_anew(number: signal.Signals) -> Inject:
    """Return what sends a signal after a checkpoint, for other processes to resume from there."""

    def inject(trial: Trial) -> bool:
        before = trial.checkpoints()
        pid = trial.start()
        while trial.checkpoints() <= before and is_alive(pid):
            time.sleep(0.005)
        time.sleep(trial.draw.uniform(0, 0.2 * trial.subject.seconds))
        if number == signal.SIGKILL:
            kill_all(pid)
        else:
            os.kill(pid, number)
        code = trial.end(pid)
        trial.divide_anew()
        return code != 0

    return inject


def at_switch(number: signal.Signals) -> Inject:
    """Return what sends a signal to a process that begins the second phase, or soon after."""

    def inject(trial: Trial) -> bool:
        wanted, later = trial.draw.choice("01"), trial.draw.randrange(6)

        def arm() -> None:
            from biphasic.training.run import Run

            enter = Run.enter

            def enter_and_send(run: Run, phase: object) -> None:
                enter(run, phase)  # type: ignore[arg-type]
                if run.step == SWITCH and os.environ.get("RANK", wanted) == wanted:
                    after_operations(trial.root, later, lambda: os.kill(os.getpid(), number))
                    if not later:
                        os.kill(os.getpid(), number)

            Run.enter = enter_and_send  # type: ignore[method-assign]

        return trial.run(arm) != 0

    return inject


def power_lost(trial: Trial) -> bool:
    """All processes end at once; what was not flushed is lost, or cut to a prefix."""
    journal = Journal(trial.root, trial.folder / "journal")
    pid = trial.start(journal.watch)
    trial.pause()
    kill_all(pid)
    trial.end(pid)
    journal.lose(trial.draw)
    trial.is_over = False  # what a finished run left may be lost, too
    return True


def disk_full(trial: Trial) -> bool:
    """The file system has room for a part of what the run writes."""
    if not can_mount():
        return failed_writes(errno.ENOSPC)(trial)
    with mounted(trial.root) as remount:
        used = shutil.disk_usage(trial.root).used
        remount(f"size={used + trial.draw.randrange(4096, trial.subject.growth)}")
        code = trial.run()
        remount("size=1g")
    return code != 0


def failed_writes(*codes: int) -> Inject:
    """Return what lets all changes of files fail after a random number of them."""

    def inject(trial: Trial) -> bool:
        number, code = trial.operation(), trial.draw.choice(codes)

        def fail() -> None:
            trial.mark.touch()
            raise OSError(code, os.strerror(code), str(trial.root))

        return trial.struck(trial.run(lambda: after_operations(trial.root, number, fail)))

    return inject


def read_only(trial: Trial) -> bool:
    """The file system is read-only from the start, or becomes so."""
    if not can_mount() or trial.draw.random() < 0.7:
        return failed_writes(errno.EROFS)(trial)
    with mounted(trial.root) as remount:
        remount("ro")
        code = trial.run()
        remount("rw")
    return code != 0


def slow_disk(trial: Trial) -> bool:
    """Each creation, rename and deletion takes up to 20 ms."""
    trial.run(lambda: slow(trial.root, trial.draw))
    return True


def clock_set(trial: Trial) -> bool:
    """The clock jumps by up to a day, back or forth, in the processes and on the files' dates."""
    seconds = trial.draw.choice((-1, 1)) * trial.draw.choice((5.0, 90.0, 3600.0, 86400.0))
    moment = time.time() + trial.draw.uniform(0, trial.subject.seconds)
    real = time.time

    def arm() -> None:
        time.time = lambda: real() + (seconds if real() > moment else 0.0)

    pid = trial.start(arm)
    trial.pause()
    for lock in (*trial.root.glob("store/leases/*"), *trial.root.glob("*/.lock")):
        with suppress(FileNotFoundError):
            os.utime(lock, (real() + seconds,) * 2)
    if trial.draw.random() < 0.5:
        kill_all(pid)
    trial.end(pid)
    return True


def checkpoint_damaged(trial: Trial) -> bool:
    """A bit of the newest checkpoint is flipped; it is named, and the one before it offered."""
    enough = trial.draw.randint(2, 9)

    def arm() -> None:
        from biphasic.training.state import Checkpoints

        drop_old = Checkpoints.drop_old

        def drop_and_die(checkpoints: Checkpoints) -> None:
            drop_old(checkpoints)
            if len(made := {*made_steps, *checkpoints.steps()}) >= enough:
                _kill_self()
            made_steps.update(made)

        made_steps: set[int] = set()
        Checkpoints.drop_old = drop_and_die  # type: ignore[method-assign]

    trial.run(arm)
    before, newest = sorted(trial.root.glob("store/progress/*/step-*"))
    name = _damage(newest, trial.draw, only_flip=True)
    if trial.run() != 2:
        raise FaultError(f"{newest / name}: damage was not noticed")
    text = trial.log.read_text()
    if str(newest) not in text or f"the checkpoint before it, {before.name}, is" not in text:
        raise FaultError(f"{newest / name}: {text}")
    return True


def folder_damaged(trial: Trial) -> bool:
    """A file of a finished folder is changed, cut or gone; `study verify` names it."""
    manifests = sorted(trial.root.glob(f"store/*/**/{MANIFEST}"))
    folder = trial.draw.choice(manifests).parent
    name = _damage(folder, trial.draw)
    arguments = ("study", "verify", NAME, "--root", "{}")
    log = trial.folder / "verified"
    log.unlink(missing_ok=True)
    code, text = wait(start(arguments, trial.root, log)), log.read_text()
    if "Traceback" in text or code != 1 or str(folder) not in text:
        raise FaultError(f"{folder / name}: exit code {code}: {text}")
    trial.log.write_text(text)
    trial.follow()
    return True


def _damage(folder: Path, draw: random.Random, *, only_flip: bool = False) -> str:
    """Damage one file of a folder; return its name."""
    file = draw.choice(sorted(path for path in folder.rglob("*") if path.stat().st_size))
    size, kind = file.stat().st_size, "flip" if only_flip else draw.choice(("flip", "cut", "gone"))
    if kind == "gone":
        file.unlink()
    elif kind == "cut":
        os.truncate(file, draw.randrange(size))
    else:
        with file.open("r+b") as stream:
            stream.seek(draw.randrange(size))
            byte = stream.read(1)[0] ^ 1 << draw.randrange(8)
            stream.seek(-1, os.SEEK_CUR)
            stream.write(bytes([byte]))
    return file.name


@dataclass(frozen=True)
class Fault:
    """A row of the table.

    Attributes:
        subject: Name of the command that meets it.
        where: What that does.
        kind: What happens.
        inject: Does it.
        times: How often in one trial, before the run is finished and compared.
    """

    subject: str
    where: str
    kind: str
    inject: Inject
    times: int = 3


_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_KILL = "SIGKILL to all processes at a random moment"
_OPERATION = "SIGKILL before a random change of files"
_POWER = "power loss: what was not flushed is lost or cut"
_FULL = "disk full"
_READ_ONLY = "read-only file system"
_SLOW = "slow file system"
_CLOCK = "clock set back or forward"
_PAIR = "pretraining, two processes"
_OTHERS = "pretraining, resumed by another number of processes"

FAULTS = (
    Fault("pretraining", "pretraining", _KILL, all_killed),
    *(
        Fault("pretraining", "pretraining", f"{each.name} at a random moment", signalled(each))
        for each in _SIGNALS
    ),
    Fault("pretraining", "pretraining", _POWER, power_lost),
    Fault("pretraining", "pretraining", _CLOCK, clock_set, 1),
    *(
        Fault("pretraining", "switch of phases", f"{each.name} at the switch", at_switch(each), 1)
        for each in (signal.SIGKILL, signal.SIGTERM)
    ),
    Fault("pretraining", "checkpoints", _OPERATION, killed_at_operation),
    Fault("pretraining", "checkpoints", "a flipped bit", checkpoint_damaged, 1),
    Fault("pretraining", "checkpoints", _FULL, disk_full),
    Fault("pretraining", "checkpoints", _READ_ONLY, read_only),
    Fault("pretraining", "checkpoints", _SLOW, slow_disk, 1),
    Fault("two processes", _PAIR, "SIGKILL to one process", child_killed, 2),
    Fault("two processes", _PAIR, "SIGKILL to the command alone", parent_killed, 2),
    Fault("two processes", _PAIR, _KILL, all_killed, 2),
    Fault("two processes", _PAIR, "SIGTERM to one process", child_terminated, 2),
    Fault("two processes", _PAIR, "SIGKILL to one at the switch", at_switch(signal.SIGKILL), 1),
    Fault("two processes", _PAIR, "a flipped bit in a checkpoint", checkpoint_damaged, 1),
    Fault("two processes", _PAIR, _POWER, power_lost, 2),
    *(
        Fault("another number", _OTHERS, f"{each.name} after a checkpoint", divided_anew(each), 2)
        for each in (signal.SIGKILL, signal.SIGTERM)
    ),
    Fault("fine-tuning", "fine-tuning", _KILL, all_killed),
    Fault("fine-tuning", "fine-tuning", _OPERATION, killed_at_operation),
    Fault("fine-tuning", "fine-tuning", "SIGTERM at a random moment", signalled(signal.SIGTERM)),
    Fault("fine-tuning", "fine-tuning", _POWER, power_lost),
    Fault("fine-tuning", "fine-tuning", _FULL, disk_full),
    Fault("fine-tuning", "fine-tuning", _READ_ONLY, read_only),
    Fault("scheduling", "scheduling", "SIGKILL to a worker", child_killed),
    Fault("scheduling", "scheduling", "SIGTERM to a worker", child_terminated),
    Fault("scheduling", "scheduling", "SIGKILL to the scheduler alone", parent_killed),
    Fault("scheduling", "scheduling", _KILL, all_killed),
    Fault("scheduling", "scheduling", _OPERATION, killed_at_operation),
    *(
        Fault("scheduling", "scheduling", f"{each.name} at a random moment", signalled(each))
        for each in _SIGNALS[:2]
    ),
    Fault("scheduling", "scheduling", _POWER, power_lost),
    Fault("scheduling", "scheduling", _FULL, disk_full),
    Fault("scheduling", "scheduling", _READ_ONLY, read_only),
    Fault("scheduling", "scheduling", _SLOW, slow_disk, 1),
    Fault("scheduling", "scheduling", _CLOCK, clock_set, 1),
    Fault("report", "reports", _KILL, all_killed),
    Fault("report", "reports", _OPERATION, killed_at_operation),
    Fault("report", "reports", _POWER, power_lost),
    Fault("report", "reports", _FULL, disk_full),
    Fault("finished", "finished folders", "a file changed, cut or gone", folder_damaged, 1),
    Fault("corpus", "corpora", _KILL, all_killed),
    Fault("corpus", "corpora", _OPERATION, killed_at_operation),
    Fault("corpus", "corpora", "SIGKILL to a tokenizer process", child_killed),
    Fault("corpus", "corpora", _POWER, power_lost),
    Fault("corpus", "corpora", _FULL, disk_full),
    Fault("corpus", "corpora", _READ_ONLY, read_only),
    Fault("corpus", "corpora", _SLOW, slow_disk, 1),
)  # fmt: skip
