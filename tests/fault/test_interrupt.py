"""Ctrl-C and SIGTERM: training saves what it has, checkpoint or not, and goes on from there."""

import json
import os
import signal
import time

import pytest

from biphasic.objectives.clm import Clm
from mini_study import children, copy_root, run_command, start_command, states, write_study

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("warm", "unrendered", "unprobed", "slow_steps"),
]

STEPS = 60
# Processes that a shell starts in the background ignore Ctrl-C, and so do those that they start.
HEEDS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"


@pytest.fixture
def slow_steps(monkeypatch):
    """Steps of forked processes take their time, so that few of them are enough."""
    original = Clm.supervise

    def supervise(objective, *arguments, **options):
        time.sleep(0.05)
        return original(objective, *arguments, **options)

    monkeypatch.setattr(Clm, "supervise", supervise)


def long_study(finished, folder):
    """Return a root, and the arguments that run a study of one long training there."""
    root = copy_root(finished, folder / "root", data_only=True)
    arms = [{"name": "long", "phases": [{"objective": "clm", "steps": STEPS}]}]
    study = write_study(folder, arms=arms, tasks=[], checkpoint_every=0, heldout_every=0)
    return root, ("study", "run", study, "--root", root, "--workers", "1")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_an_interrupted_study_saves_and_resumes(finished, tmp_path, number):
    root, arguments = long_study(finished, tmp_path)
    with start_command(*arguments, setup=HEEDS, start_new_session=True) as process:
        wait_for_steps(root / "mini/progress.json", process)
        # As terminals and schedulers do it: to all processes.
        os.killpg(process.pid, number)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "interrupted; run again to resume" in err
    assert "Traceback" not in err
    [checkpoint] = (root / "store/progress").glob("*/step-*")
    saved = json.loads((checkpoint / "state.json").read_text())["step"]
    assert 0 < saved < STEPS
    assert json.loads((root / "mini/progress.json").read_text())["is_over"]

    ended = run_command(*arguments)
    assert ended.returncode == 0, ended.stderr
    [state] = states(root)
    steps = [
        line["step"]
        for line in map(json.loads, (state / "metrics.jsonl").read_text().splitlines())
        if "loss" in line
    ]
    assert steps == list(range(1, STEPS + 1))
    assert not list((root / "store/progress").iterdir())


def test_a_terminated_worker_saves_and_its_job_resumes(finished, tmp_path):
    root, arguments = long_study(finished, tmp_path)
    with start_command(*arguments) as process:
        wait_for_steps(root / "mini/progress.json", process)
        [worker] = children(process.pid)
        os.kill(worker, signal.SIGTERM)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "its worker was terminated; stopped after" in err
    [state] = states(root)
    lines = (state / "metrics.jsonl").read_text().splitlines()
    assert sum("loss" in line for line in lines) == STEPS


def test_terminated_pretraining_saves(finished, tmp_path):
    [corpus] = (finished / "root/store/data").iterdir()
    recipe = tmp_path / "recipe.yaml"
    phase = "{objective: clm, steps: 4000}"
    settings = "model: pico\nmax_seqlen: 64\nrows_per_step: 4\nlearning_rate: {peak: 1.0e-3}\n"
    recipe.write_text(f"{settings}phases: [{phase}]\n")
    with start_command("pretrain", recipe, "--corpus", corpus, "--root", tmp_path) as process:
        end = time.monotonic() + 300
        while not list(tmp_path.glob("store/tensorboard/*/*")) and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "run again to resume" in err
    [checkpoint] = (tmp_path / "store/progress").glob("*/step-*")
    step = json.loads((checkpoint / "state.json").read_text())["step"]
    assert f"stopped after {step} steps" in err
    assert step % 200, "no checkpoint was due"


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
