"""Options that several commands have."""

from __future__ import annotations

import pytest

COMPUTING = {
    "pretrain": ["pretrain", "recipe.yaml"],
    "evaluate": ["evaluate", "model", "--task", "sst2"],
    "adapt": ["adapt", "model", "--corpus", "builtin:pydocs", "--out", "out"],
    "finetune": ["finetune", "model", "--task", "sst2", "--out", "out"],
    "encode": ["encode", "model", "texts.txt", "--out", "vectors.npy"],
    "predict": ["predict", "model", "texts.txt"],
}
RECIPE = "model: pico\nphases: [{objective: clm, steps: 2}]\nlearning_rate: {peak: 1e-3}\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a recipe, texts, and an empty model."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "texts.txt").write_text("a text\n")
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", COMPUTING)
def test_an_unknown_device_is_bad_input(cli, place, command):
    code, out, err = cli(*COMPUTING[command], "--device", "gpu")
    assert (code, out) == (2, "")
    assert err == "error: device: unknown value 'gpu'; write cpu, cuda or cuda:N\n"
    assert sorted(path.name for path in place.iterdir()) == ["model", "recipe.yaml", "texts.txt"]
