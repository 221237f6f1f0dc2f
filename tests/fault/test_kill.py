"""kill -9 at bad moments, again and again: the results are those of the uninterrupted run."""

import contextlib
import os
import random
import signal
import subprocess
import time

import pytest

from mini_study import Cli, children, command, scores, write_small_study

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm", "undrawn", "unprobed")]

DEADLINE = 300.0

# What appears on disk at a moment worth dying in, and how many of it; in the order in which a run
# meets them, so that each kill comes while there is still something to do.
MOMENTS = {
    "between tokenizer and corpus": ("store/data/*/tokenizer/manifest.json", 1),
    "while a checkpoint is written": ("store/progress/*/.partial-step-*", 1),
    "while a state is written": ("store/states/.partial-*", 1),
    "right after a phase switch": ("store/progress/*-from-0/step-00000006/manifest.json", 1),
    "in fine-tuning": ("store/finetunes/*/result.json", 5),
    "while a result is written": ("store/finetunes/.partial-*", 1),
    "while the report is written": ("mini/report/results.csv", 1),
}


def test_interrupted_equals_uninterrupted(finished, tmp_path, cli: Cli):
    root, study = tmp_path / "root", write_small_study(tmp_path)
    draw = random.Random(0)  # noqa: S311 - moments, not secrets
    killed = []
    for moment, (pattern, count) in MOMENTS.items():
        # From the very moment to a little later, when something else may be half done.
        delay = draw.choice((0.0, 0.0, 0.1)) * draw.random()
        if kill_when(root, study, pattern, count=count, delay=delay):
            killed.append(moment)
    # A moment may slip by on a slow machine, but then the run ended before it was seen.
    assert len(killed) >= len(MOMENTS) - 1, killed
    arguments = ("study", "run", study, "--root", root, "--workers", "1")
    code, _, err = cli(*arguments)
    assert code == 0, err
    assert len(scores(root)) == 5 * 2 * 2
    assert set(scores(root)) <= set(scores(finished / "root"))
    assert "all finished; nothing to do" in cli(*arguments)[1]
    # Nothing half-written is left behind in what studies share.
    assert not list((root / "store").rglob(".partial-*"))
    assert not list((root / "store/progress").iterdir())


def kill_when(root, study, pattern, *, count, delay):
    """Run the study, kill it at the moment, and see its workers end; tell whether it came."""
    arguments = ("study", "run", study, "--root", root, "--workers", "1")
    seen = {path for path in root.glob(pattern) if ".partial-" in path.name}
    with subprocess.Popen(
        command(*arguments),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        end = time.monotonic() + DEADLINE
        while process.poll() is None:
            assert time.monotonic() < end, f"{pattern} never appeared"
            if len(set(root.glob(pattern)) - seen) >= count:
                break
            time.sleep(0.001)
        else:
            return False
        if ".partial-" in pattern:  # all at once, or the worker would finish what it writes
            workers = []
            os.killpg(process.pid, signal.SIGKILL)
        else:
            time.sleep(delay)
            workers = children(process.pid)
            process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    for worker in workers:
        assert ends(worker), f"worker {worker} outlives the process that started it"
    return True


def ends(pid):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 0)
            if not is_zombie(pid):
                time.sleep(0.02)
                continue
        return True
    return False


def is_zombie(pid):
    shown = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    return shown.strip().startswith("Z") or not shown.strip()
