"""The cluster of these tests is a real one: its nodes, signals, requeued jobs and outages."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cluster import SlurmCluster

WAIT = "while true; do sleep 0.1; done"


def test_two_nodes_are_idle(slurm: SlurmCluster):
    assert slurm.run("sinfo", "--noheader", "--Node", "-p", slurm.partition, "-o", "%N %T") == (
        "n1 idle\nn2 idle"
    )


def test_commands_are_on_the_path(slurm: SlurmCluster):
    version = subprocess.run(["sbatch", "--version"], capture_output=True, check=True)  # noqa: S607
    assert version.stdout.startswith(b"slurm")


def test_a_step_runs_on_both_nodes(slurm: SlurmCluster):
    names = slurm.run("srun", "--nodes=2", "printenv", "SLURMD_NODENAME")
    assert sorted(names.split()) == list(slurm.nodes)


def test_a_signal_reaches_a_job(slurm: SlurmCluster, tmp_path: Path):
    job = submit(slurm, tmp_path, "trap 'touch signalled; exit 3' USR2", "touch ready", WAIT)
    slurm.wait("a ready job", (tmp_path / "ready").exists)
    slurm.run("scancel", "--batch", "--signal=USR2", job)
    slurm.wait("a failed job", lambda: slurm.job(job)["JobState"] == "FAILED")
    assert (tmp_path / "signalled").exists()
    assert slurm.job(job)["ExitCode"] == "3:0"


def test_a_requeued_job_runs_again(slurm: SlurmCluster, tmp_path: Path):
    starts = tmp_path / "starts"
    job = submit(slurm, tmp_path, f"echo ${{SLURM_RESTART_COUNT:-0}} >> {starts}", WAIT)
    slurm.wait("a first start", starts.exists)
    slurm.run("scontrol", "requeue", job)
    slurm.wait("a second start", lambda: starts.read_text() == "0\n1\n")


def test_a_job_outlives_an_outage_of_the_controller(slurm: SlurmCluster, tmp_path: Path):
    job = submit(slurm, tmp_path, "touch ready", "until test -e go; do sleep 0.1; done")
    slurm.wait("a ready job", (tmp_path / "ready").exists)
    with slurm.controller_stopped():
        with pytest.raises(RuntimeError, match="Unable to contact slurm controller"):
            slurm.run("squeue")
        (tmp_path / "go").touch()
    slurm.wait("a completed job", lambda: slurm.job(job)["JobState"] == "COMPLETED")


def submit(slurm: SlurmCluster, folder: Path, *lines: str) -> str:
    """Submit a job of these lines of shell, which run in `folder`; return its number."""
    script = folder / "job.sh"
    script.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    return slurm.run("sbatch", "--parsable", f"--chdir={folder}", script)
