"""The reference graph, arm for arm, from its file to its report; shared trunks are exact."""

from pathlib import Path

import pytest
import torch
import yaml

from biphasic import pretrain
from biphasic.data.building.config import CorpusConfig
from biphasic.files import read_json
from biphasic.model.shape import PRESETS
from biphasic.study.settings.load import load_study
from mini_study import run_command, states, write_custom_tasks

FILE = Path(__file__).parents[2] / "studies/paper-micro.yaml"
SHORTER = 20
POINTS = [1, 2, 3, 5, 10, 20]
CORPUS = {"libraries": ["click"], "vocab_size": 512}


def shortened(folder):
    """Return the shipped study with few steps, short rows, and one small task."""
    study = yaml.safe_load(FILE.read_text())
    for arm in study["arms"]:
        for part in (arm, *arm["phases"], *(p.get("learning_rate", {}) for p in arm["phases"])):
            for key in ("steps", "decay_steps"):
                if key in part:
                    part[key] //= SHORTER
        for axis, values in arm["axes"].items():
            if axis.endswith(".steps"):
                arm["axes"][axis] = [value // SHORTER for value in values]
    for points in study["evaluation_points"]:
        points["arms"] = [name.replace("420", "21") for name in points["arms"]]
        assert len(points["steps"]) == len(POINTS)
        points["steps"] = POINTS
    rate = {"peak": 2.0e-3, "warmup_steps": 1, "decay_steps": 1}
    study["recipe"] |= {"max_seqlen": 32, "rows_per_step": 2, "learning_rate": rate}
    study |= {"name": "short", "corpus": CORPUS, "checkpoint_every": 0, "heldout_every": 0}
    # Scored without training: fine-tunings of a whole study are test_study.py's.
    study["tasks"] = [{"name": "lookup", "source": "zs:own/lookup"}]
    study["finetuning"] = {"protocol": {"max_seqlen": 32}}
    write_custom_tasks(folder / "own")
    path = folder / "short.yaml"
    path.write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    return path


@pytest.fixture
def narrow(monkeypatch):
    """The presets' names for small models, and few held-out rows, in forked processes too."""
    monkeypatch.setattr("biphasic.training.heldout.HELDOUT_TOKENS", 64)
    if not torch.cuda.is_available():
        for name, width in (("nano", 96), ("micro", 128)):
            smaller = PRESETS["pico"].model_copy(update={"hidden_size": width})
            monkeypatch.setitem(PRESETS, name, smaller)


@pytest.mark.slow
@pytest.mark.usefixtures("warm", "narrow", "undrawn", "unprobed")
def test_the_grid_runs_to_its_report_and_branches_are_exact(tmp_path):
    root, study = tmp_path / "root", shortened(tmp_path)
    ended = run_command("study", "run", study, "--root", root, "--workers", "2")
    assert ended.returncode == 0, ended.stderr
    record = read_json(root / "short/study.json")
    finals = [arm for arm in record["arms"] if arm["is_final"]]
    assert (len(finals), len(record["arms"])) == (38, 50)
    assert len(record["runs"]) == 50
    page = (root / "short/report/report.html").read_text()
    assert all(arm["label"] in page for arm in finals)
    rows = (root / "short/report/results.csv").read_text().splitlines()
    scored = [row for row in rows if ",lookup," in row and "finished" in row]
    arms = {arm["name"] for arm in record["arms"]}
    assert sum(row.split(",")[0] in arms for row in scored) == 50
    # BM25, and five draws of random vectors for each of the three sizes.
    assert len(scored) - 50 == len(record["baselines"]) == 1 + 3 * 5

    # Many arms, one trunk: the branch with the most ancestors, trained alone in a store of its own.
    deepest = max(finals, key=lambda arm: len(arm["segments"]))
    assert len(deepest["segments"]) >= 3
    config = load_study(study)
    [arm] = [arm for arm in config.arms if arm.name == deepest["name"]]
    alone = pretrain(
        config.recipe_of(arm),
        corpus=CorpusConfig(folder=next((root / "store/data").iterdir())),
        root=tmp_path / "alone",
    )
    assert alone.name == deepest["state"]
    assert [path.name for path in states(tmp_path / "alone")] == [alone.name]
    for part in ("model.safetensors", "optimizer.safetensors"):
        ours, theirs = (folder / part for folder in (root / "store/states" / alone.name, alone))
        assert ours.read_bytes() == theirs.read_bytes(), part
