"""Failures while running: exit code 1, and the rest is done."""

import csv
import io
import sys

import pytest

from biphasic.store import is_complete
from mini_study import STUDY, copy_root, results, run_command, write_study

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("undrawn", "unprobed")]


def test_a_job_that_fails_stops_only_those_that_need_it(finished, tmp_path, cli):
    root = copy_root(finished, tmp_path / "root", data_only=True)
    # Weights beyond what bfloat16 holds after the first update, in pretraining and fine-tuning.
    recipe = {**STUDY["recipe"], "learning_rate": {"peak": 1e38}}
    study = write_study(
        tmp_path,
        recipe=recipe,
        arms=STUDY["arms"][:2],
        tasks=STUDY["tasks"][:1],
        finetuning={**STUDY["finetuning"], "learning_rates": [5e-4, 1e38], "seeds": [0]},
    )
    code, out, err = cli("study", "run", study, "--root", root, "--workers", "1")
    assert code == 1, err
    failed = [line for line in err.splitlines() if line.startswith("failed: ")]
    assert len(failed) == 2
    assert "mlm 0-12: step" in failed[0]
    assert "not finite; lower the learning rate" in failed[0]
    assert failed[1] == "failed: mlm on pydocs-sc: skipped: a job that it needs failed"
    rows = list(csv.DictReader(io.StringIO(results(root).decode())))
    status = {(row["arm"], row["learning_rate"], row["status"]) for row in rows if row["seed"]}
    assert ("untrained", "0.0005", "finished") in status
    assert any(arm == "untrained" and word == "diverged" for arm, _, word in status)
    assert not any(arm == "mlm" and word == "finished" for arm, _, word in status)
    assert "missing" in out.lower()
    page = (root / "mini/report/report.html").read_text()
    assert "Missing" in page
    assert "Diverged" in page


@pytest.mark.usefixtures("warm")
@pytest.mark.skipif(sys.platform == "win32", reason="no limit on file sizes")
def test_a_full_disk_leaves_no_partial_files(finished, tmp_path, cli):
    root = copy_root(finished, tmp_path / "root", data_only=True)
    study = write_study(tmp_path, arms=STUDY["arms"][:2], tasks=STUDY["tasks"][:1])
    # Files beyond a size cannot be written: weights are, their manifests are not.
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))"
    arguments = ("study", "run", study, "--root", root, "--workers", "1", "--tries", "1")
    ended = run_command(*arguments, setup=limit)
    assert ended.returncode == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "failed: untrained 0-0" in ended.stderr
    folders = [*root.glob("store/states/*"), *root.glob("store/progress/*/*")]
    assert not [folder for folder in folders if is_complete(folder)]
    assert not list(root.glob("store/states/.partial-*"))
