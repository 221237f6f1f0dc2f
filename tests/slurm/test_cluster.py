"""The cluster of these tests is one: its nodes, signals and requeued jobs are real."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from cluster import SlurmCluster

DEADLINE = 60.0


def test_two_nodes_are_idle(slurm: SlurmCluster):
    assert slurm.run("sinfo", "--noheader", "--Node", "-p", slurm.partition, "-o", "%N %T") == (
        "n1 idle\nn2 idle"
    )


def test_a_step_runs_on_both_nodes(slurm: SlurmCluster):
    names = slurm.run("srun", "--nodes=2", "printenv", "SLURMD_NODENAME")
    assert sorted(names.split()) == ["n1", "n2"]


def test_a_signal_reaches_a_job(slurm: SlurmCluster, tmp_path: Path):
    job = submit(slurm, tmp_path, "trap 'touch signalled; exit' USR2", "touch ready", WAIT)
    until((tmp_path / "ready").exists)
    slurm.run("scancel", "--batch", "--signal=USR2", job)
    until((tmp_path / "signalled").exists)
    until(lambda: slurm.job(job)["JobState"] == "COMPLETED")


def test_a_requeued_job_runs_again(slurm: SlurmCluster, tmp_path: Path):
    restarts = tmp_path / "restarts"
    job = submit(slurm, tmp_path, f"echo ${{SLURM_RESTART_COUNT:-0}} >> {restarts}", WAIT)
    until(restarts.exists)
    slurm.run("scontrol", "requeue", job)
    until(lambda: restarts.read_text() == "0\n1\n")
    slurm.run("scancel", job)
    until(lambda: slurm.job(job)["JobState"] == "CANCELLED")


WAIT = "while true; do sleep 0.1; done"


def submit(slurm: SlurmCluster, folder: Path, *lines: str) -> str:
    """Submit a job of these lines of shell, which run in `folder`; return its number."""
    script = folder / "job.sh"
    script.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    return slurm.run("sbatch", "--parsable", f"--chdir={folder}", script)


def until(happens: Callable[[], bool]) -> None:
    """Wait until something happens, which takes Slurm seconds."""
    end = time.monotonic() + DEADLINE
    while not happens():
        assert time.monotonic() < end, f"not in {DEADLINE} seconds"
        time.sleep(0.1)
