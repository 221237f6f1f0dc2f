"""What the soak runs: commands on copies of one small root, and what an uninterrupted run leaves.

All processes are forked from this one (`warm.py`), which has loaded every library.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load
from torch import Tensor

from biphasic.files import PARTIAL, read_json
from mini_study import STUDY, has_ended, write_study
from soak.disk import at_operations
from warm import become, forking, probe_nothing, render_nothing

STEPS = 24
SWITCH = STEPS // 2
PATIENCE = 90.0
ROUNDING = 1e-5
"""Of losses and of the norms of tensors, where sums are taken in another order."""
NAME = "mini"
_TASKS = ("first-word", "lookup")
_REPORT = ("results.csv", "table.csv", "problems.csv")

Arm = Callable[[], None]
"""Called in a forked process before its command."""


@dataclass(frozen=True)
class Subject:
    """A command, and what it makes of a root.

    Attributes:
        arguments: Of the command line; `{}` stands for the root.
        start: Root to begin with; copied for each run.
        expected: `content` of the root after an uninterrupted run.
        seconds: How long that took.
        operations: Files and folders that its busiest process created, renamed or deleted.
        growth: How many bytes it added to the root.
        is_rounded: Whether faults change how its sums are rounded (`differences`).
    """

    name: str
    arguments: tuple[str, ...]
    start: Path
    expected: dict[str, Any]
    seconds: float
    operations: int
    growth: int
    is_rounded: bool


@contextmanager
def soaking() -> Iterator[None]:
    """Make all that is forked from this process quick, where that changes no result."""
    with pytest.MonkeyPatch.context() as patch, forking():
        render_nothing(patch)
        probe_nothing(patch)
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setattr("os.fsync", lambda _: None)  # no machine stops here; `disk` has its own
        patch.setattr("biphasic.training.heldout.HELDOUT_TOKENS", 128)
        patch.setattr("biphasic.execution.scheduler.RetryPolicy.delay", lambda *_: 0.05)
        patch.setattr("biphasic.execution.scheduler.Clock.taken_seconds", 0.1)
        patch.setattr("biphasic.execution.executor._TAKEN_SECONDS", 0.1)
        patch.setattr("biphasic.locks.LEASE_SECONDS", 10.0)
        patch.setattr("biphasic.locks.HEARTBEAT_SECONDS", 1.0)
        from biphasic.data.building.build import build_corpus

        patch.setitem(build_corpus.__kwdefaults__, "block_bytes", 20_000)  # many shards
        yield


def make_subjects(folder: Path, names: Collection[str]) -> dict[str, Subject]:
    """Run what these subjects need once without a fault."""
    study, root = _write_study(folder / "study"), folder / "root"
    (train, *_), (tune, *_) = _jobs(study, root, folder / "log", "train", "finetune")
    train_fp32 = ""  # in which another order of sums changes the last bits alone
    if "another number" in names:
        exact = _write_study(folder / "exact", name="exact", precision="fp32")
        ((train_fp32, *_),) = _jobs(exact, root, folder / "log", "train")
    run = ("study", "run", str(study), "--root", "{}", "--workers", "2")
    build = ("corpus", "build", str(_write_texts(folder / "texts.jsonl")), "--out", "{}/corpus")
    build = (*build, "--vocab-size", "400", "--heldout-fraction", "0.2", "--workers", "2")

    job, empty = ("job", "run", "--root", "{}"), folder / "empty"
    empty.mkdir()
    # Each begins with a root, which another one may have left.
    subjects: dict[str, tuple[tuple[str, ...], Callable[[], Path]]] = {
        "pretraining": ((*job, train), lambda: root),
        "two processes": ((*job, train), lambda: _with_two_processes(root, train)),
        "another number": ((*job, train_fp32), lambda: root),
        "fine-tuning": ((*job, tune), lambda: whole("pretraining")),
        "scheduling": (run, lambda: root),
        "finished": (run, lambda: whole("scheduling")),
        "report": (
            ("study", "report", f"{{}}/{NAME}"), lambda: _without_report(whole("scheduling"))
        ),
        "corpus": (build, lambda: empty),
    }  # fmt: skip

    @cache
    def make(name: str) -> Subject:
        command, begin = subjects[name]
        return _subject(name, command, begin(), folder)

    def whole(name: str) -> Path:
        make(name)
        return folder / f"{name} whole"

    return {name: make(name) for name in names}


def _jobs(study: Path, root: Path, log: Path, *kinds: str) -> list[list[str]]:
    """Write a study's jobs, and return the identities of some kinds."""
    listed = _run(("study", "jobs", str(study), "--root", "{}"), root, log)
    jobs = [line.split("\t") for line in listed.splitlines() if line.count("\t") == 4]
    return [[identity for identity, of, *_ in jobs if of == kind] for kind in kinds]


def _with_two_processes(root: Path, job: str) -> Path:
    copy = copy_root(root, root.with_name("two"))
    set_compute(copy, job, {"processes": 2})
    return copy


def set_compute(root: Path, job: str, compute: dict[str, Any]) -> None:
    """Change the compute settings of a training job."""
    file = root / "store/jobs" / f"{job}.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "compute": compute}))


def _without_report(root: Path) -> Path:
    copy = copy_root(root, root.with_name("unreported"))
    shutil.rmtree(copy / NAME / "report")
    return copy


def _subject(name: str, arguments: tuple[str, ...], start: Path, folder: Path) -> Subject:
    root, log = copy_root(start, folder / f"{name} whole"), folder / "log"
    notes = folder / f"{name} operations"
    notes.touch()

    def note() -> None:
        with notes.open("a") as lines:
            lines.write(f"{os.getpid()}\n")

    begin = time.monotonic()
    _run(arguments, root, log, arm=lambda: at_operations(root, note))
    seconds = time.monotonic() - begin
    processes = notes.read_text().split()
    most = max(map(processes.count, set(processes)), default=1)
    growth = max(_size(root) - _size(start), 3 * 4096)
    is_rounded = name == "another number"
    return Subject(name, arguments, start, content(root), seconds, most, growth, is_rounded)


def _size(root: Path) -> int:
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in root.rglob("*"))


def _run(arguments: tuple[str, ...], root: Path, log: Path, *, arm: Arm | None = None) -> str:
    log.unlink(missing_ok=True)
    code = wait(start(arguments, root, log, arm=arm))
    if code:
        raise RuntimeError(f"without any fault: exit code {code}: {log.read_text()}")
    return log.read_text()


def start(arguments: tuple[str, ...], root: Path, log: Path, *, arm: Arm | None = None) -> int:
    """Start a command in a forked process with a session of its own; return its id."""
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
        os.dup2(file, number)

    def program() -> None:
        from biphasic.cli.main import main

        faulthandler.dump_traceback_later(PATIENCE - 5)  # shows where it hangs
        if arm:
            arm()
        sys.argv = ["biphasic", *(each.format(root) for each in arguments)]
        main()

    become(program, None)
    raise AssertionError


def wait(pid: int) -> int:
    """Wait for a process; return its exit code, negative for a signal.

    Raises:
        TimeoutError: It takes too long; it is killed.
    """
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    kill_all(pid)
    os.waitpid(pid, 0)
    raise TimeoutError


def family(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    with suppress(psutil.NoSuchProcess):
        return [pid, *(each.pid for each in psutil.Process(pid).children(recursive=True))]
    return [pid]


def kill_all(pid: int) -> None:
    """Kill a process and all that descend from it, as if at once."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    for each in family(pid):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def wait_until_gone(pids: list[int]) -> None:
    """Wait until orphans have ended; they notice by themselves that they are alone."""
    if not all(has_ended(pid, within=PATIENCE) for pid in pids):
        raise TimeoutError


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that was not waited for does not."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def content(root: Path) -> dict[str, Any]:
    """Return what must not depend on faults: weights, moments, ledgers, lines, scores, corpora."""
    found: dict[str, Any] = {}
    for folder in (*root.glob("store/states/" + 64 * "[0-9a-f]"), *root.glob("store/finetunes/*")):
        for file in folder.iterdir():
            if file.name != "manifest.json":  # has the hash of a file with times
                found[file.relative_to(root).as_posix()] = _without_times(file)
    for file in (*root.glob("store/data/**/*"), *root.glob("corpus/**/*")):
        if file.is_file() and not file.name.startswith(".lock"):
            found[file.relative_to(root).as_posix()] = file.read_bytes()
    report = root / NAME / "report"
    if (report / "results.csv").is_file():
        found |= {name: (report / name).read_bytes() for name in _REPORT}
        study = read_json(root / NAME / "study.json")
        found["study.json"] = {key: study[key] for key in ("arms", "runs", "tasks")}
    unfinished = (*root.rglob(f"{PARTIAL}*"), *root.glob("store/progress/*"))
    return found | {f"unfinished {path.relative_to(root)}": "" for path in unfinished}


def differences(
    found: dict[str, Any], expected: dict[str, Any], *, is_rounded: bool = False
) -> list[str]:
    """Return the names of what differs between the `content` of two roots.

    With `is_rounded`, losses, gradient norms, weights and moments may differ by 1e-5 of their size,
    and compute settings in any way; all else, such as rows and ledgers, is equal.
    """
    is_same = _is_close if is_rounded else lambda _, one, other: one == other
    names = found.keys() | expected.keys()
    return sorted(n for n in names if not is_same(n, found.get(n), expected.get(n)))


def _is_close(name: str, one: Any, other: Any) -> bool:
    if one is None or other is None:
        return False
    match Path(name).name:
        case "metrics.jsonl":
            return len(one) == len(other) and all(map(_are_close_records, one, other))
        case "state.json":
            return _are_close_records(one, other)
        case "model.safetensors" | "optimizer.safetensors":
            return _are_close_tensors(load(one), load(other))
    return bool(one == other)


def _are_close_records(one: dict[str, Any], other: dict[str, Any]) -> bool:
    sums, counts = [], []
    for record in (one, other):
        rest = {key: record[key] for key in record.keys() - {"compute", "changes"}}
        single = {key: rest.pop(key) for key in ("loss", "gradient_norm") if key in rest}
        sums.append(single | rest.pop("heldout", {}))
        counts.append(rest)
    return counts[0] == counts[1] and sums[0] == pytest.approx(sums[1], rel=ROUNDING, abs=0)


def _are_close_tensors(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        tensor.shape == other[name].shape
        and bool((tensor - other[name]).norm() <= ROUNDING * tensor.norm())
        for name, tensor in one.items()
    )


def _without_times(file: Path) -> Any:
    if file.name == "metrics.jsonl":
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        return [{k: v for k, v in line.items() if k != "tokens_per_second"} for line in lines]
    if file.name in {"state.json", "result.json"}:
        record = json.loads(file.read_text())
        return {key: value for key, value in record.items() if key not in {"seconds", "sealed"}}
    return file.read_bytes()


def _write_study(folder: Path, *, name: str = NAME, precision: str = "bf16") -> Path:
    folder.mkdir(parents=True)
    halves = [{"objective": name, "steps": SWITCH} for name in ("clm", "mlm")]
    return write_study(
        folder,
        name=name,
        recipe={**STUDY["recipe"], "precision": precision},
        arms=[
            {"name": "two", "phases": halves},
            {"name": "one", "phases": [{"objective": "mlm", "steps": 8}]},
        ],
        tasks=[task for task in STUDY["tasks"] if task["name"] in _TASKS],
    )


def _write_texts(path: Path) -> Path:
    draw = random.Random(7)  # noqa: S311 - words, not secrets
    words = [f"w{draw.randrange(3000)}" for _ in range(3000)]
    with path.open("w") as lines:
        for number in range(600):
            text = " ".join(draw.choices(words, k=draw.randrange(20, 100)))
            lines.write(json.dumps({"id": str(number), "text": text}) + "\n")
    return path


def copy_root(root: Path, copy: Path) -> Path:
    """Copy a root, with the paths in its job files."""
    shutil.copytree(root, copy, symlinks=True)
    for job in copy.glob("store/jobs/*.json"):
        text = job.read_text()
        for other in {str(root), str(Path(json.loads(text)["store"]).parent)}:
            text = text.replace(other, str(copy))
        job.write_text(text)
    return copy
