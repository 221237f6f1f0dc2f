"""Killed at random moments, a study ends as if nothing had happened; then nothing is left."""

import os
import random
import re
import signal
import subprocess

import pytest

from mini_study import command, run_command, scores, write_small_study

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm", "undrawn", "unprobed")]

NUM_KILLS = 12


def test_a_dozen_kills_change_nothing(finished, tmp_path):
    root, study = tmp_path / "root", write_small_study(tmp_path)
    arguments = ("study", "run", study, "--root", root, "--workers", "1")
    draw = random.Random(6)  # noqa: S311 - moments, not secrets
    num_killed = 0
    for _ in range(NUM_KILLS):
        num_killed += killed_after(draw.uniform(0.1, 1.0), arguments, at_once=draw.random() < 0.5)
    # A fast machine may be done before the last of them, but not before the first ones.
    assert num_killed >= 3
    ended = run_command(*arguments)
    assert ended.returncode == 0, ended.stderr

    states = {path.name for path in (root / "store/states").iterdir()}
    assert len(states) == 6  # the untrained one, four ends, the middle of one
    for name in states:
        for part in ("model.safetensors", "optimizer.safetensors"):
            ours, theirs = (r / "store/states" / name / part for r in (root, finished / "root"))
            assert ours.read_bytes() == theirs.read_bytes(), (name, part)
    # Every cell is one of the uninterrupted study's, to the last digit.
    whole = scores(finished / "root")
    assert set(scores(root)) <= set(whole)
    assert len(scores(root)) == 5 * 2 * 2
    assert not list((root / "store").rglob(".partial-*"))
    assert not list((root / "store/progress").iterdir())

    again = run_command(*arguments)
    assert again.returncode == 0, again.stderr
    assert "all finished; nothing to do" in again.stdout
    assert not re.search(r"^\[", again.stderr, re.MULTILINE)


def killed_after(seconds, arguments, *, at_once):
    """Start the study and kill it: with its workers, or so that they find themselves alone."""
    with subprocess.Popen(
        command(*arguments),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            if at_once:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
            process.wait()
    return process.returncode == -signal.SIGKILL
