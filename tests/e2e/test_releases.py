"""What each release wrote is read, reported, resumed and used by the code of today.

`tests/releases/make.py` wrote the archives.
"""

import csv
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unrendered", "unprobed")]

ARCHIVES = sorted(Path(__file__).parents[1].glob("releases/*.tar.xz"))
SCORES = ("arm", "task", "metric", "learning_rate", "seed", "status", "validation", "test")
KINDS = ("sc", "ml", "sr", "tc", "qa", "ir", "zs", "mp", "sts")


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def release(request, tmp_path, monkeypatch) -> Path:
    with tarfile.open(request.param) as tar:
        tar.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path / "kept")
    return tmp_path / "kept"


def rows_of(path: Path) -> list[tuple[str, ...]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return [tuple(row[name] for name in SCORES) for row in csv.DictReader(stream)]


def results_in(folder: Path) -> dict[str, int]:
    """Return states and fine-tunings, with the times of their manifests."""
    found = folder.glob("runs/store/[fs]*/*/manifest.json")
    return {str(path): path.stat().st_mtime_ns for path in found}


def labels_of(path: Path) -> list[str]:
    return [json.loads(line)["label"] for line in path.read_text("utf-8").splitlines()]


def test_a_report_is_made_from_the_records(release, cli):
    expected = rows_of(release / "runs/kept/report/results.csv")
    assert {f"own-{kind}" for kind in KINDS} <= {row[1] for row in expected}
    shutil.rmtree(release / "runs/kept/report")
    code, out, err = cli("study", "report", "kept")
    assert code == 0, err
    assert rows_of(release / "runs/kept/report/results.csv") == expected
    problems = (release / "runs/kept/report/problems.csv").read_text("utf-8").splitlines()
    assert problems == ["kind,text"]
    code, out, err = cli("study", "verify", "kept")
    assert code == 0, out + err


def test_nothing_is_computed_again(release, cli):
    """Until a change of numbers gives its runs other identities; this test goes with it."""
    before = results_in(release)
    assert len(before) > 80
    code, out, err = cli("study", "run", "kept.yaml", "--workers", "1")
    assert code == 0, err
    assert results_in(release) == before
    assert "Q1" in out


def test_a_training_resumes_from_a_checkpoint(release, cli):
    """Within a phase with LoRA. Goes with a change of numbers, too."""
    train = ("pretrain", "recipe.yaml", "--corpus", "corpus")
    [checkpoint, *_] = release.glob("runs/store/progress/*/step-*")
    code, resumed, err = cli(*train)
    assert code == 0, err
    assert not checkpoint.exists()  # it was of this training, which is finished now
    code, fresh, err = cli(*train, "--root", "fresh")
    assert code == 0, err
    states = [Path(text.strip().splitlines()[-1]).resolve() for text in (resumed, fresh)]
    assert states[0].name == states[1].name
    one, other = (load_file(state / "model.safetensors") for state in states)
    for name, weights in one.items():  # of one code, but begun on another processor
        np.testing.assert_allclose(weights, other[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("model", ["export", "runs/store/states/by-name/kept/both"])
def test_vectors_are_what_they_were(release, cli, model):
    texts = ("text.jsonl", "--long-texts", "truncate")
    code, _, err = cli("encode", model, *texts, "--out", "again.npy")
    assert code == 0, err
    vectors, expected = np.load(release / "again.npy"), np.load(release / "vectors.npy")
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_a_fine_tuned_folder_predicts(release, cli):
    code, _, err = cli("predict", "sorter", "sc/test.jsonl", "--out", "again.jsonl")
    assert code == 0, err
    assert labels_of(release / "again.jsonl") == labels_of(release / "sorted.jsonl")


@pytest.mark.parametrize(
    "command",
    ["corpus verify corpus", "pairs inspect pairs", "pairs inspect taught", "study clean"],
)
def test_data_are_whole(release, cli, command):
    code, out, err = cli(*command.split())
    assert code == 0, out + err
