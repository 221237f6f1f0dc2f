"""Loading a model from a folder: what was saved, or one line that names the folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from biphasic.errors import ModelError
from biphasic.model.attention import ATTENTION_NAME
from biphasic.model.build import load_model, new_model, preset_config

WEIGHTS = "model.safetensors"


@pytest.fixture
def model() -> PreTrainedModel:
    special_ids = {"bos": 1, "eos": 2, "pad": 0, "mask": 3}
    config = preset_config("pico", vocab_size=300, max_seqlen=64, special_ids=special_ids)
    return new_model(config, init_seed=0)


@pytest.fixture
def folder(tmp_path: Path, model: PreTrainedModel) -> Path:
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_loads_what_was_saved(folder: Path, model: PreTrainedModel) -> None:
    loaded = load_model(folder)
    assert type(loaded) is type(model)
    assert loaded.config._attn_implementation == ATTENTION_NAME
    saved = model.state_dict()
    assert saved.keys() == loaded.state_dict().keys()
    assert all(torch.equal(tensor, saved[name]) for name, tensor in loaded.state_dict().items())


def test_half_precision_is_widened(folder: Path, model: PreTrainedModel) -> None:
    model.to(torch.bfloat16).save_pretrained(folder)
    assert {weight.dtype for weight in load_model(folder).parameters()} == {torch.float32}


def truncate(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])


def remove_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()


def remove_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def change_config(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        remove_weights,
        remove_config,
        break_config,
        change_config(model_type="nonesuch"),
        change_config(intermediate_size=96),
    ],
    ids=["truncated", "no-weights", "no-config", "broken-config", "unknown-type", "other-shape"],
)
def test_damaged_folder_is_named_in_one_line(folder: Path, damage: Callable[[Path], None]) -> None:
    damage(folder)
    with pytest.raises(ModelError, match="cannot be loaded") as error:
        load_model(folder)
    assert str(error.value).startswith(f"{folder}: ")
    assert "\n" not in str(error.value)


def test_absent_and_empty_folders_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "absent"):
        with pytest.raises(ModelError, match=f"{name}: cannot be loaded"):
            load_model(tmp_path / name)


def test_missing_weights_are_never_drawn_at_random(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    kept = {name: tensor for name, tensor in tensors.items() if ".layers.1.mlp." not in name}
    save_file(kept, folder / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"weights are missing \(3, first model\.layers\.1\.mlp\."):
        load_model(folder)


def test_an_encoder_may_come_without_its_head(tmp_path: Path, model: PreTrainedModel) -> None:
    model.base_model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    embedding = model.get_input_embeddings().weight
    assert torch.equal(loaded.get_input_embeddings().weight, embedding)
