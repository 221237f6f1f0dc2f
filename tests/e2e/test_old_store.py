"""A store of an earlier version is read, reported and resumed; one of a newer version is refused.

`tests/old_store/make.py` wrote the archive.
"""

import csv
import hashlib
import json
import shutil
import signal
import tarfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from biphasic.training import loop
from mini_study import edit_json

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("undrawn", "unprobed")]

ARCHIVE = Path(__file__).parents[1] / "old_store/2026-11.tar.gz"
RESULTS = "runs/old/report/results.csv"
SCORES = ("arm", "task", "metric", "learning_rate", "seed", "status", "validation", "test")


@pytest.fixture
def old(tmp_path, monkeypatch) -> Path:
    with tarfile.open(ARCHIVE) as tar:
        tar.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path / "old")
    return tmp_path / "old"


def rows_of(path: Path) -> list[tuple[str, ...]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return [tuple(row[name] for name in SCORES) for row in csv.DictReader(stream)]


def write_newer(path: Path) -> str:
    """Give a file the next number of its format, and its folder's manifest the new hash."""
    name = json.loads(path.read_text()).get("format", "biphasic.new/1").split("/")[0] + "/2"
    edit_json(path, format=name)
    manifest = path.with_name("manifest.json")
    if manifest.is_file() and path != manifest:
        files = json.loads(manifest.read_text())["files"]
        content = path.read_bytes()
        size, sha256 = len(content), hashlib.sha256(content).hexdigest()
        files[path.name] = {**files[path.name], "bytes": size, "sha256": sha256}
        edit_json(manifest, files=files)
    return name


def results_in(old: Path) -> dict[str, int]:
    """Return states and fine-tunings with the times of their manifests."""
    found = old.glob("runs/store/*/*/manifest.json")
    return {str(path): path.stat().st_mtime_ns for path in found}


def test_nothing_is_computed_again(old, cli):
    before, expected = results_in(old), rows_of(old / RESULTS)
    shutil.rmtree(old / "runs/old/report")
    code, out, err = cli("study", "run", "old.yaml", "--workers", "1")
    assert code == 0, err
    assert {*before.items()} <= {*results_in(old).items()}
    # Floors and references are new.
    record = json.loads((old / "runs/old/study.json").read_text("utf-8"))
    added = {Path(name).parent.name for name in results_in(old) if "tasks" not in name}
    added -= {Path(name).parent.name for name in before}
    assert added == {run["id"] for run in record["baselines"]}
    is_new = {run["arm"] for run in record["baselines"]}
    assert [row for row in rows_of(old / RESULTS) if row[0] not in is_new] == expected
    assert "Q1" in out
    by_name = "runs/store/states/by-name/old"
    assert sorted(path.name for path in (old / by_name).iterdir()) == ["both", "mlm"]
    (old / "new.txt").write_text("sun and sea\n")
    code, out, err = cli("encode", f"{by_name}/mlm", "new.txt", "--out", "vectors.npy")
    assert code == 0, err
    code, out, err = cli("study", "verify", "old")
    assert code == 0, out + err


def test_a_report_is_made_from_the_records(old, cli):
    expected = rows_of(old / RESULTS)
    shutil.rmtree(old / "runs/old/report")
    code, _, err = cli("study", "report", "old")
    assert code == 0, err
    assert rows_of(old / RESULTS) == expected


def interrupt_after(num_updates, monkeypatch):
    """Press Ctrl-C in the last of some updates of the next command."""
    left = iter(range(num_updates - 1, -1, -1))
    monkeypatch.setattr(
        loop, "release_excess", lambda: next(left) or signal.raise_signal(signal.SIGINT)
    )


def test_a_training_resumes_from_an_old_checkpoint(old, cli, monkeypatch):
    train = ("pretrain", "recipe.yaml", "--corpus", "corpus")
    [checkpoint] = old.glob("runs/store/progress/*/step-*")
    assert checkpoint.name == "step-00000020"
    reached = "/".join((checkpoint.parent.name, "step-00000024/model.safetensors"))
    for root, num_updates in (("runs", 4), ("fresh", 24)):  # the other hundreds show no more
        interrupt_after(num_updates, monkeypatch)
        code, _, err = cli(*train, "--root", root)
        assert code == 130, err
    one, other = (load_file(f"{root}/store/progress/{reached}") for root in ("runs", "fresh"))
    for name, weights in one.items():  # equal within the rounding of another machine
        difference = np.linalg.norm(weights - other[name]) / np.linalg.norm(other[name])
        assert difference < 1e-3, name


def test_models_are_used(old, cli):
    (old / "new.txt").write_text("sun and sea\nmoon and hill\n")
    code, _, err = cli("predict", "sorter", "new.txt", "--out", "sorted.jsonl")
    assert code == 0, err
    rows = [json.loads(line) for line in (old / "sorted.jsonl").read_text().splitlines()]
    assert [row["label"] for row in rows] == ["sun", "moon"]
    code, _, err = cli("encode", "export", "new.txt", "--out", "vectors.npy")
    assert code == 0, err
    expected = np.load(ARCHIVE.with_name("vectors.npy"))
    np.testing.assert_allclose(np.load(old / "vectors.npy"), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("pattern", "command"),
    [
        ("runs/old/study.json", ["study", "report", "old"]),
        ("runs/old/registrations/*/registration.json", ["study", "report", "old"]),
        ("runs/store/finetunes/*/result.json", ["study", "report", "old"]),
        ("runs/store/states/*/state.json", ["study", "report", "old"]),
        ("runs/store/states/*/manifest.json", ["study", "run", "old.yaml"]),
        ("runs/store/finetunes/*/manifest.json", ["study", "run", "old.yaml"]),
        ("runs/store/progress/*/*/manifest.json", ["pretrain", "recipe.yaml", "--corpus=corpus"]),
        ("runs/store/wanted/*.json", ["study", "clean"]),
        ("corpus/train/corpus.json", ["pretrain", "recipe.yaml", "--corpus=corpus"]),
        ("corpus/built.json", ["corpus", "verify", "corpus"]),
        ("sorter/head.json", ["predict", "sorter", "text.jsonl", "--out=out.csv"]),
    ],
)
def test_a_file_of_a_newer_version_is_refused(old, cli, pattern, command):
    if command[-1] == "clean":  # it plans the studies, whose text was elsewhere
        cli("study", "run", "old.yaml", "--workers", "1")
    path = sorted(old.glob(pattern))[0]
    name = write_newer(path)
    code, out, err = cli(*command)
    text = " ".join((out + err).split())
    assert code != 0
    assert f"/{path.name}: {name}" in text
    assert "upgrade biphasic" in text
