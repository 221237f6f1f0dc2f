"""Site files on real Slurm: a first one, a trial, and one clear line for what is wrong."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
import yaml
from cluster import SlurmCluster

from mini_study import run_command

LOCAL = {"address": "127.0.0.1", "exclusive": False, "poll_seconds": 1}
"""What these tests' nodes need, beside what sinfo says."""

OTHER_PYTHON = """
import collections, sys

if any("process_worker_pool" in argument for argument in sys.orig_argv):
    names = ("major", "minor", "micro", "releaselevel", "serial")
    sys.version_info = collections.namedtuple("version_info", names)(3, 9, 0, "final", 0)
"""
"""A module `sitecustomize` after which nodes say that they run Python 3.9."""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site file as `site init` writes it, for this machine."""
    path = tmp_path / "site.yaml"
    ended = run_command("site", "init", path)
    assert ended.returncode == 0, ended.stderr
    return changed(path, **LOCAL)


def changed(path: Path, **settings: object) -> Path:
    """Change settings of a site file."""
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **settings}))
    return path


def check(site: Path, *options: str) -> tuple[int, str]:
    """Run `site check`; return its exit code and last line."""
    ended = run_command("site", "check", site, "--root", site.parent / "runs", "--quiet", *options)
    printed = (ended.stdout + ended.stderr).strip()
    assert "Traceback" not in printed, printed
    assert not list(site.parent.glob("runs/.site-check-*")) or ended.returncode
    return ended.returncode, printed


def test_a_first_site_file_says_what_sinfo_does_and_works(slurm: SlurmCluster, site: Path):
    settings = yaml.safe_load(site.read_text())
    assert settings["partition"] == slurm.partition
    assert (settings["jobs_per_node"], settings["max_blocks"]) == (4, 2)
    assert settings["walltime"] == "24:00:00"  # the partition has no limit
    # More jobs than cores cannot have cores of their own.
    code, printed = check(changed(site, pin_cores=False))
    assert code == 0, printed
    assert printed.startswith(("n1: Python ", "n2: Python "))
    assert "GPUs: none" in printed
    assert not slurm.run("squeue", "--noheader")
    refused = run_command("site", "init", site)
    assert (refused.returncode, "exists already" in refused.stderr) == (2, True)
    refused = run_command("site", "init", site.parent / "other.yaml", "--partition", "shrot")
    assert refused.stderr.strip() == (
        "error: --partition shrot: not a partition (did you mean 'short'?)"
    )


def test_what_is_wrong_with_a_site_is_one_line(slurm: SlurmCluster, site: Path):
    code, printed = check(changed(site, partition="gpus"))
    assert code == 1
    assert printed.startswith("error: no node ran a job: ")
    assert "Invalid partition name specified" in printed
    code, printed = check(changed(site, partition="main", setup=["export PATH=/usr/bin:/bin"]))
    assert code == 1
    assert "process_worker_pool.py: command not found" in printed
    (site.parent / "sitecustomize.py").write_text(OTHER_PYTHON)
    other = [f"export PYTHONPATH={site.parent}:$PYTHONPATH"]
    code, printed = check(changed(site, setup=other))
    assert code == 1
    assert "nodes have py.v=3.9 " in printed
    assert printed.endswith("load the same Python on both")
    code, printed = check(changed(site, setup=[], address="203.0.113.7"))
    assert (code, printed.partition(" (")[0]) == (
        2,
        "error: address: 203.0.113.7 is not an address of this machine",
    )


@pytest.mark.skipif(os.getuid() != 0, reason="cuts nodes off with a network namespace: needs root")
def test_nodes_that_cannot_reach_the_ports_are_named(slurm: SlurmCluster, site: Path):
    isolated = 'process_worker_pool.py() { unshare --net env process_worker_pool.py "$@"; }'
    code, printed = check(changed(site, setup=[isolated]))
    assert code == 1
    assert "its nodes did not connect to 127.0.0.1, ports 54000 to 55000" in printed


def test_a_queue_that_never_starts_is_named(slurm: SlurmCluster, site: Path):
    nodes = ",".join(slurm.nodes)
    slurm.run("scontrol", "update", f"nodename={nodes}", "state=drain", "reason=maintenance")
    try:
        code, printed = check(site, "--timeout", "1")
        assert code == 1
        assert "no node within 1 minutes; batch jobs" in printed
        assert "wait in the scheduler's queue (" in printed
        assert not slurm.run("squeue", "--noheader")
    finally:
        slurm.run("scontrol", "update", f"nodename={nodes}", "state=resume")


def test_a_long_training_requeues_itself(slurm: SlurmCluster, tmp_path: Path):
    recipe = {
        "model": "pico",
        "max_seqlen": 64,
        "rows_per_step": 4,
        "precision": "fp32",
        "learning_rate": {"peak": 2e-3, "warmup_steps": 2},
        "phases": [{"objective": "mlm", "steps": 2400}],
    }
    corpus = {"libraries": ["rich", "typer", "click"], "vocab_size": 512}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    (tmp_path / "corpus.yaml").write_text(yaml.safe_dump(corpus))
    start = time.monotonic()
    assert run_command(*pretrain(tmp_path, "alone")).returncode == 0
    # A quarter: on a busy machine the second training may be twice as fast as the first.
    part = int(time.monotonic() - start) // 4
    script = (Path(__file__).parents[2] / "sites/pretrain.sbatch").read_text()
    script = script.replace("--gpus=1", "--ntasks=1").replace("--partition=gpu", "--partition=main")
    line = "biphasic pretrain recipe.yaml --root runs --max-time 11:50:00"
    assert line in script
    limit = ["--max-time", f"00:{part // 60:02}:{part % 60:02}"]
    again = " ".join(map(str, ["biphasic", *pretrain(tmp_path, "runs"), *limit]))
    (tmp_path / "job.sh").write_text(script.replace(line, again))
    environment = f"--export=ALL,PATH={Path(sys.executable).parent}:{os.environ['PATH']}"
    job = slurm.run("sbatch", "--parsable", environment, f"--chdir={tmp_path}", tmp_path / "job.sh")
    done = {"COMPLETED", "FAILED"}
    slurm.wait("it ends", lambda: slurm.job(job)["JobState"] in done, seconds=900)
    log = (tmp_path / f"slurm-{job}.out").read_text()
    assert int(slurm.job(job)["Restarts"]) >= 1, log
    [alone], [resumed] = (
        list(tmp_path.glob(f"{root}/store/states/*/model.safetensors"))
        for root in ("alone", "runs")
    )
    assert resumed.read_bytes() == alone.read_bytes()


def pretrain(folder: Path, root: str) -> list[Path | str]:
    """Return the arguments of the training."""
    recipe, corpus = folder / "recipe.yaml", folder / "corpus.yaml"
    return ["pretrain", recipe, "--corpus", corpus, "--root", folder / root]
