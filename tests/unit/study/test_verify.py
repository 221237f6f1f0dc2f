"""`study verify` reads the pairs of texts that phases read, and a teacher's vectors."""

from __future__ import annotations

import json

import numpy as np
import pytest

from biphasic import pretrain
from biphasic.data.building.build import read_record
from biphasic.data.pairs import Pair, write_pairs
from biphasic.study.resolve import resolve
from biphasic.study.study import Study
from small_root import study_of, write_texts
from tiny_study import mlm


@pytest.fixture
def pairs(tmp_path):
    """A folder of pairs with vectors, and a study with a phase that reads them."""
    rows = [Pair(f"query {n}", f"answer {n}") for n in range(8)]
    embed = lambda texts: np.eye(len(texts), 32, dtype=np.float32)  # noqa: E731
    folder = write_pairs(tmp_path / "pairs", rows, origin={}, embed=embed).folder
    reads = {"objective": "distill", "pairs": str(folder), "steps": 2}
    config = study_of(
        write_texts(tmp_path), tmp_path / "first", arms=[{"name": "a", "phases": [mlm(2), reads]}],
        tasks=[],
    )  # fmt: skip
    Study(config, tmp_path / "runs").save()
    return folder


def test_verified_pairs_are_counted(pairs, cli):
    code, out, err = cli("study", "verify", "one", "--root", pairs.parent / "runs")
    assert (code, err.count("damaged")) == (0, 0), err
    assert "1 pairs" in out


@pytest.mark.parametrize("name", ["vectors.npy", "texts.arrow"])
def test_damage_in_pairs_is_named_beside_other_damage(pairs, cli, name):
    content = bytearray((pairs / name).read_bytes())
    content[-1] ^= 1
    (pairs / name).write_bytes(content)
    (pairs.parent / "runs/one/study.json").write_text("{")
    code, _, err = cli("study", "verify", "one", "--root", pairs.parent / "runs")
    damaged = [line for line in err.splitlines() if line.startswith("damaged: ")]
    assert code == 1
    assert any("study.json" in line for line in damaged)
    assert [str(pairs) in line and name in line for line in damaged].count(True) == 1


def test_phases_of_pairs_need_no_corpus(one_thread, tmp_path):
    rows = [Pair(f"query {n} of a cat", f"answer {n} of a dog") for n in range(200)]
    folder = write_pairs(tmp_path / "pairs", rows, origin={}).folder
    phase = {"objective": "contrastive", "pairs": str(folder), "batch": 4, "steps": 1}
    recipe = {
        "model": "pico", "max_seqlen": 32, "rows_per_step": 4,
        "learning_rate": {"peak": 1e-3}, "phases": [phase],
    }  # fmt: skip
    state = pretrain(recipe, corpus={"vocab_size": 300}, root=tmp_path / "runs", quiet=True)
    assert json.loads((state / "state.json").read_text())["step"] == 1
    [corpus] = (tmp_path / "runs/store/data").glob("*/train")
    [source] = read_record(corpus.parent)["origin"]["sources"]
    assert (source["source"], source["name"]) == ("pairs", "pairs")
    config = study_of(
        tmp_path, tmp_path, corpus={}, arms=[{"name": "a", "phases": [phase]}], tasks=[]
    )
    planned = resolve(Study(config, tmp_path / "new"), missing="placeholder")
    assert any("pairs" in text for text in planned.assumed)
