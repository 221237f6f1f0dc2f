"""Ctrl-C: training saves what it has, though no checkpoint was due, and goes on from there."""

import json
import os
import signal
import subprocess
import time

from mini_study import command, copy_root, run_command, write_study

STEPS = 800
# Processes that a shell starts in the background ignore Ctrl-C, and so do those that they start.
HEEDS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"


def test_an_interrupted_study_saves_and_goes_on(finished, tmp_path):
    root = copy_root(finished, tmp_path / "root", data_only=True)
    arms = [{"name": "long", "phases": [{"objective": "clm", "steps": STEPS}]}]
    study = write_study(tmp_path, arms=arms, tasks=[], checkpoint_every=0, heldout_every=0)
    arguments = ("study", "run", study, "--root", root, "--workers", "1")
    with subprocess.Popen(
        command(*arguments, setup=HEEDS),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        wait_for_steps(root / "mini/progress.json", process)
        # As a terminal does it: to all processes in the foreground.
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "interrupted; run again to go on" in err
    assert "Traceback" not in err
    [checkpoint] = (root / "store/progress").glob("*/step-*")
    saved = json.loads((checkpoint / "state.json").read_text())["step"]
    assert 0 < saved < STEPS
    assert json.loads((root / "mini/progress.json").read_text())["is_over"]

    ended = run_command(*arguments)
    assert ended.returncode == 0, ended.stderr
    [state] = (root / "store/states").iterdir()
    steps = [
        line["step"]
        for line in map(json.loads, (state / "metrics.jsonl").read_text().splitlines())
        if "loss" in line
    ]
    assert steps == list(range(1, STEPS + 1))
    assert not list((root / "store/progress").iterdir())


def wait_for_steps(path, process):
    """Wait until the study says that some steps have been made."""
    end = time.monotonic() + 300
    while time.monotonic() < end:
        assert process.poll() is None, process.stderr.read()
        if path.is_file():
            running = json.loads(path.read_text())["running"]
            if running and running[0]["done"] > 3:
                return
        time.sleep(0.05)
    raise AssertionError("no step was made")
