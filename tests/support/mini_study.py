"""A study in miniature, and ways to run it: for the tests of whole runs.

One uninterrupted run serves all of them. It is made once, also where several processes run tests.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from stat import S_IFMT, S_ISDIR
from typing import Any

import psutil
import pytest
import yaml
from filelock import FileLock

from warm import draw_nothing, forking, probe_nothing

STEPS = 12


def _clm(steps: int) -> dict[str, Any]:
    return {"objective": "clm", "steps": steps}


def _mlm(steps: int, **options: Any) -> dict[str, Any]:
    return {"objective": "mlm", "steps": steps, **options}


STUDY: dict[str, Any] = {
    "name": "mini",
    "title": "Miniature",
    "corpus": {"libraries": ["rich", "typer", "click"], "vocab_size": 512},
    "recipe": {
        "model": "pico",
        "max_seqlen": 64,
        "rows_per_step": 4,
        "learning_rate": {"peak": 2e-3, "warmup_steps": 2, "decay_steps": 2},
    },
    "checkpoint_every": 2,
    "heldout_every": 6,
    "arms": [
        {"name": "untrained"},
        {"name": "mlm", "phases": [_mlm(12)]},
        {"name": "clm", "phases": [_clm(12)]},
        {"name": "clm-25-mlm-75", "phases": [_clm(3), _mlm(9)]},
        {"name": "clm-50-mlm-50", "phases": [_clm(6), _mlm(6)]},
        # Shares no step with the others, so that its phase switch lies within a segment.
        {"name": "mlm-50-clm-50", "phases": [_mlm(6, mlm_probability=0.2), _clm(6)]},
    ],
    "tasks": [
        {"name": "pydocs-sc"},
        {"name": "pydocs-tc"},
        {"name": "pydocs-qa", "protocol": {"max_question_tokens": 16, "window_overlap": 8}},
        {"name": "pydocs-ir", "protocol": {"retrieval_corpus": "judged"}},
        # Of one's own: paths begin at the study file.
        {"name": "first-word", "source": "sc:own/first-word"},
        {"name": "lookup", "source": "zs:own/lookup"},
    ],
    "finetuning": {
        "learning_rates": [5e-4],
        "seeds": [0, 1],
        "protocol": {"max_steps": 2, "batch_size": 4, "max_seqlen": 64, "precision": "bf16"},
    },
}


def write_custom_tasks(folder: Path) -> None:
    """Write tables with a label for each text, and a retrieval task in BEIR's layout."""
    tables, lookup = folder / "first-word", folder / "lookup"
    tables.mkdir(parents=True, exist_ok=True)
    for split in ("train", "dev", "test"):
        rows = [f'"{word}, {split} {n}",{word}' for n in range(8) for word in ("rows", "shape")]
        (tables / f"{split}.csv").write_text("\n".join(["text,label", *rows]) + "\n", "utf-8")
    (lookup / "qrels").mkdir(parents=True, exist_ok=True)
    words = ("index", "stream", "window", "axis")
    for name, text in (("corpus", "the {} of a model"), ("queries", "{}")):
        rows = [json.dumps({"_id": word, "text": text.format(word)}) for word in words]
        (lookup / f"{name}.jsonl").write_text("\n".join(rows) + "\n", "utf-8")
    judgements = [f"{word}\t{word}\t1" for word in words]
    text = "\n".join(["query-id\tcorpus-id\tscore", *judgements]) + "\n"
    (lookup / "qrels/test.tsv").write_text(text, "utf-8")


def write_study(folder: Path, **changes: Any) -> Path:
    """Write the study file, with other top-level settings where given, and its own tasks."""
    write_custom_tasks(folder / "own")
    path = folder / "mini.yaml"
    path.write_text(yaml.safe_dump({**STUDY, **changes}, sort_keys=False), encoding="utf-8")
    return path


def write_small_study(folder: Path) -> Path:
    """Write a part of the study, each state and score of which the whole has too."""
    arms = {"untrained", "mlm", "clm", "clm-50-mlm-50", "mlm-50-clm-50"}
    tasks = {"pydocs-sc", "first-word"}
    return write_study(
        folder,
        arms=[arm for arm in STUDY["arms"] if arm["name"] in arms],
        tasks=[task for task in STUDY["tasks"] if task["name"] in tasks],
    )


def command(*arguments: Path | str, setup: str = "") -> list[str]:
    """Return what runs the command line in a process of its own."""
    program = f"{setup}\nfrom biphasic.cli.main import main\nmain()"
    return [sys.executable, "-c", program, *map(str, arguments)]


def run_command(*arguments: Path | str, setup: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return subprocess.run(
        command(*arguments, setup=setup),
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def start_command(*arguments: Path | str, setup: str = "", **options: Any) -> subprocess.Popen[str]:
    """Start the command line in a process of its own; its standard error can be read."""
    return subprocess.Popen(
        command(*arguments, setup=setup),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        **options,
    )


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    return [child.pid for child in psutil.Process(pid).children()]


def has_ended(pid: int, *, within: float = 30.0) -> bool:
    """Return whether a process ends within some seconds, if only as a zombie."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def kill_when(
    happens: Callable[[], bool], program: list[str], *, all_at_once: bool = False, delay: float = 0
) -> bool:
    """Start a program and kill it when something happens; return whether it did in time.

    Kill the parent alone, whose workers must end then, or all processes at once.
    """
    with subprocess.Popen(
        program,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        end = time.monotonic() + 300
        while not happens():
            if process.poll() is not None:
                return False
            assert time.monotonic() < end, "it never happened"
            time.sleep(0.0005)
        workers: list[int] = []
        if all_at_once:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            time.sleep(delay)
            workers = children(process.pid)
            process.send_signal(signal.SIGKILL)
    for worker in workers:
        assert has_ended(worker), f"worker {worker} outlives the process that started it"
    return process.returncode == -signal.SIGKILL


def appears(folder: Path, pattern: str, count: int) -> Callable[[], bool]:
    """Return what tells whether as many files are there, without leftovers of other processes."""
    leftovers = {path for path in folder.glob(pattern) if ".partial-" in path.name}
    return lambda: len(set(folder.glob(pattern)) - leftovers) >= count


def flip(path: Path) -> None:
    """Flip a bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    """Cut the end of a file off."""
    path.write_bytes(path.read_bytes()[:-7])


def edit_json(path: Path, **changes: object) -> None:
    """Change some keys of a JSON object; None removes one."""
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


class Cli:
    """Runs the command line in this process; its workers are forked from it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: Path | str) -> tuple[int, str, str]:
        """Return exit code, standard output and standard error."""
        from biphasic.cli.main import main

        self._monkeypatch.setattr(sys, "argv", ["biphasic", *map(str, arguments)])
        self._capsys.readouterr()
        with forking(), pytest.raises(SystemExit) as ended:
            main()
        captured = self._capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err


def finished_study(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Return the root of an uninterrupted run; what it printed is `stdout` and `stderr` there.

    Never change it: copy it.
    """

    def build(folder: Path) -> None:
        with forking(), pytest.MonkeyPatch.context() as patch:
            probe_nothing(patch)
            draw_nothing(patch)
            ended = run_command(
                "study", "run", write_study(folder), "--root", folder / "root", "--workers", "1"
            )
        (folder / "stdout").write_text(ended.stdout, encoding="utf-8")
        (folder / "stderr").write_text(ended.stderr, encoding="utf-8")
        assert ended.returncode == 0, ended.stderr

    return once(tmp_path_factory, worker_id, "finished", build)


def once(
    tmp_path_factory: pytest.TempPathFactory,
    worker_id: str,
    name: str,
    build: Callable[[Path], None],
) -> Path:
    """Build a folder once per test session, whichever of its processes comes first."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / name
    with FileLock(f"{folder}.lock"):
        if not (folder / "built").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            build(folder)
            (folder / "built").touch()
    return folder


def copy_root(finished: Path, root: Path, *, data_only: bool = False) -> Path:
    """Copy a finished root, or the data in its store alone, times of change included."""
    parts = ("store/data", "store/tasks") if data_only else ("",)
    for part in parts:
        (root / part).mkdir(parents=True)
        # With a fifth of the CPU time of `shutil.copytree`.
        subprocess.run(["/bin/cp", "-a", f"{finished}/root/{part}/.", root / part], check=True)
    return root


def stamps(root: Path) -> dict[Path, tuple[int, ...]]:
    """Return what tells whether anything in a root was changed; folders come before their files."""
    found = {}
    for folder, folders, files in os.walk(root):
        for path in (Path(folder, name) for name in (*folders, *files)):
            status = path.lstat()
            changes = () if S_ISDIR(status.st_mode) else (status.st_ino, status.st_ctime_ns)
            found[path] = (S_IFMT(status.st_mode), *changes)
    return found


def restore_root(finished: Path, root: Path, before: dict[Path, tuple[int, ...]]) -> None:
    """Make a copy of a finished root as it was when it had these stamps.

    With a tenth of the CPU time of another copy.
    """
    after = stamps(root)
    # A list, as folders must come before their files.
    changed = [path for path, stamp in before.items() if after.get(path) != stamp]
    for path in sorted((after.keys() - before.keys()) | (after.keys() & changed), reverse=True):
        path.rmdir() if S_ISDIR(after[path][0]) else path.unlink()
    for path in changed:
        source = finished / "root" / path.relative_to(root)
        if S_ISDIR(before[path][0]):
            path.mkdir()
        else:
            shutil.copy2(source, path, follow_symlinks=False)


def snapshot(folder: Path) -> dict[str, tuple[int, str]]:
    """Return time of change and hash of every file below a folder."""
    return {
        path.relative_to(folder).as_posix(): (
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def states(root: Path) -> list[Path]:
    """Return the folders of finished states, without the links by name."""
    return sorted(path.parent for path in (root / "store/states").glob("*/state.json"))


def results(root: Path) -> bytes:
    """Return the bytes of `results.csv`."""
    return (root / "mini/report/results.csv").read_bytes()


def scores(root: Path) -> list[str]:
    """Return the lines of `results.csv` that are scores; those of a part are the whole's."""
    _, *lines = results(root).decode().splitlines()
    return [line for line in lines if ",pretraining," not in line]


def arms(root: Path, name: str = "mini") -> dict[str, dict[str, Any]]:
    """Return what `study.json` says of each arm."""
    study = json.loads((root / name / "study.json").read_text(encoding="utf-8"))
    return {arm["name"]: arm for arm in study["arms"]}


def state(root: Path, identity: str) -> dict[str, Any]:
    """Return a state's record."""
    path = root / "store/states" / identity / "state.json"
    return json.loads(path.read_text(encoding="utf-8"))
