"""Studies on Slurm: what is finished stays finished, and results are those of one machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import yaml
from cluster import SlurmCluster

from mini_study import (
    STUDY,
    command,
    copy_root,
    results,
    run_command,
    scores,
    snapshot,
    write_small_study,
    write_study,
)

DEADLINE = 300.0
SITE = {
    "scheduler": "slurm",
    "partition": "main",
    "jobs_per_node": 1,
    "max_blocks": 2,
    "walltime": "00:30:00",
    "exclusive": False,
    "pin_cores": True,
    "address": "127.0.0.1",
    "poll_seconds": 1,
}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small study in `root`, run on this machine by one worker."""
    folder = tmp_path_factory.mktemp("local")
    study = write_small_study(folder)
    ended = run_command("study", "run", study, "--root", folder / "root", "--workers", "1")
    assert ended.returncode == 0, ended.stderr
    return folder


def test_a_study_survives_cancelled_blocks_and_killed_drivers(
    slurm: SlurmCluster, local: Path, tmp_path: Path
):
    root, study = copy_root(local, tmp_path / "root", data_only=True), write_small_study(tmp_path)
    arguments = ("study", "run", study, "--root", root, "--site", write_site(tmp_path))
    with started(*arguments, log=tmp_path / "first") as driver:
        slurm.wait("a training runs", lambda: any(root.glob("store/progress/*/step-*")))
        block = slurm.run("squeue", "--noheader", "--format=%i").split()[0]
        slurm.run("scancel", block)
        slurm.wait(
            "results are written",
            lambda: len(list(root.glob("store/finetunes/*/result.json"))) >= 4,
            seconds=DEADLINE,
        )
        before = snapshot(root / "store/finetunes")
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    ended = run_command(*arguments)
    assert ended.returncode == 0, ended.stderr
    assert "cancelled batch jobs of an earlier run" in ended.stderr
    # Each result was recorded once, none again, and all are those of one machine.
    after = snapshot(root / "store/finetunes")
    assert {name: after[name] for name in before if ".partial" not in name} == {
        name: entry for name, entry in before.items() if ".partial" not in name
    }
    assert scores(root) == scores(local / "root")
    assert results(root) == results(local / "root")
    assert not slurm.run("squeue", "--noheader")
    assert not list((root / "store").rglob(".partial-*"))


def test_a_study_survives_the_death_of_parsls_interchange(
    slurm: SlurmCluster, local: Path, tmp_path: Path
):
    root, study = copy_root(local, tmp_path / "root", data_only=True), write_small_study(tmp_path)
    site = write_site(tmp_path)
    with started("study", "run", study, "--root", root, "--site", site, log=tmp_path / "log") as it:
        slurm.wait("a training runs", lambda: any(root.glob("store/progress/*/step-*")))
        [interchange] = [
            child
            for child in psutil.Process(it.pid).children(recursive=True)
            if any("interchange" in part for part in child.cmdline())
        ]
        interchange.kill()
        assert it.wait(DEADLINE) == 0, (tmp_path / "log").read_text()
    assert "starting Parsl again" in (tmp_path / "log").read_text()
    assert scores(root) == scores(local / "root")


def test_status_names_hosts_and_blocks_and_cancel_saves(
    slurm: SlurmCluster, local: Path, tmp_path: Path
):
    root = copy_root(local, tmp_path / "root", data_only=True)
    study, log = write_long_study(tmp_path, steps=20_000), tmp_path / "log"
    site = write_site(tmp_path, jobs_per_node=2, max_blocks=1)
    shown = []

    def is_running() -> bool:
        status = run_command("study", "status", study, "--root", root, "--no-watch").stdout
        shown[:] = [line for line in status.splitlines() if "tokens/s" in line]
        return bool(shown)

    with started("study", "run", study, "--root", root, "--site", site, log=log) as driver:
        slurm.wait("a job is on a node", is_running, seconds=120)
        assert shown[0].endswith(("on n1, block 0", "on n2, block 0"))
        [worker] = [
            process
            for process in psutil.process_iter(["cmdline"])
            if str(root / "store") in (process.info["cmdline"] or [])
        ]
        assert len(worker.cpu_affinity()) == 1
        cancelled = run_command("study", "cancel", study, "--root", root)
        assert cancelled.returncode == 0, cancelled.stderr
        assert driver.wait(60) == 130, log.read_text()
    assert list(root.glob("store/progress/*/step-*/manifest.json"))
    assert not slurm.run("squeue", "--noheader")


def test_a_block_drains_before_its_time_limit(slurm: SlurmCluster, local: Path, tmp_path: Path):
    root = copy_root(local, tmp_path / "root", data_only=True)
    study = write_long_study(tmp_path, steps=4800)  # longer than a block on a fast core
    site = write_site(tmp_path, walltime="00:01:00", max_blocks=1)
    ended = run_command("study", "run", study, "--root", root, "--site", site)
    assert ended.returncode == 0, ended.stderr
    assert "reached the time limit" in ended.stderr
    [record] = (root / "store/states").glob("*/metrics.jsonl")
    steps = [json.loads(line)["step"] for line in record.read_text().splitlines() if "loss" in line]
    assert steps == sorted(set(steps))
    alone = tmp_path / "alone"
    copy_root(local, alone, data_only=True)
    assert run_command("study", "run", study, "--root", alone, "--workers", "1").returncode == 0
    assert states(root) == states(alone)


def test_a_group_over_two_nodes_trains_as_one_process_does(
    slurm: SlurmCluster, local: Path, tmp_path: Path
):
    losses, read = {}, {}
    for processes in (1, 4):
        root = copy_root(local, tmp_path / f"{processes}", data_only=True)
        study = write_long_study(tmp_path, steps=12, compute={"processes": processes})
        site = write_site(tmp_path, jobs_per_node=2)
        ended = run_command("study", "run", study, "--root", root, "--site", site)
        assert ended.returncode == 0, ended.stderr
        [folder] = (path.parent for path in (root / "store/states").glob("*/state.json"))
        lines = list(map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()))
        steps = [line for line in lines if "loss" in line]
        state = json.loads((folder / "state.json").read_text())
        read[processes] = (
            state["rows_sha256"],
            state["ledger"],
            [(step["step"], step["tokens"], step["supervised_tokens"]) for step in steps],
        )
        losses[processes] = [step["loss"] for step in steps]
    assert read[4] == read[1]
    # Another mask would change the loss in its second digit.
    assert losses[4] == pytest.approx(losses[1], rel=1e-5)


def write_site(folder: Path, **changes: object) -> Path:
    """Write a site file."""
    path = folder / "site.yaml"
    path.write_text(yaml.safe_dump({**SITE, **changes}), encoding="utf-8")
    return path


def write_long_study(folder: Path, *, steps: int, **settings: object) -> Path:
    """Write a study of one training in fp32."""
    phases = [{"objective": name, "steps": steps // 2} for name in ("clm", "mlm")]
    return write_study(
        folder,
        recipe={**STUDY["recipe"], "precision": "fp32"},
        checkpoint_every=100,
        heldout_every=100,
        arms=[{"name": "long", "phases": phases}],
        tasks=[],
        **settings,
    )


def states(root: Path) -> dict[str, bytes]:
    """Return the weights of all states."""
    return {
        path.parent.name: path.read_bytes()
        for path in (root / "store/states").glob("*/model.safetensors")
    }


@contextmanager
def started(*arguments: Path | str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the command line; it is killed when the block ends."""
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command(*arguments),
            stdout=output,
            stderr=output,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()
