"""Loading a model from a folder: what was saved, or one line that names the folder."""

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from biphasic.data.packing import pack_sequences
from biphasic.errors import ModelError
from biphasic.files import read_json
from biphasic.model.compute.attention import ATTENTION_NAME
from biphasic.model.compute.forward import batching_of, hidden_states
from biphasic.model.loading.build import load_encoder, load_pretrained
from families import tiny_config
from mini_study import edit_json

WEIGHTS = "model.safetensors"
LOADERS = pytest.mark.parametrize("load", [load_pretrained, load_encoder])


@pytest.fixture
def folder(tmp_path: Path, model: PreTrainedModel) -> Path:
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_loads_what_was_saved(folder, model):
    loaded = load_pretrained(folder)
    assert type(loaded) is type(model)
    assert loaded.config._attn_implementation == ATTENTION_NAME
    saved = model.state_dict()
    assert saved.keys() == loaded.state_dict().keys()
    assert all(torch.equal(tensor, saved[name]) for name, tensor in loaded.state_dict().items())


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
    return lambda folder: edit_json(folder / "config.json", **changes)


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
@LOADERS
def test_damaged_folder_is_named_in_one_line(load, folder, damage):
    damage(folder)
    with pytest.raises(ModelError, match=r"cannot be loaded|no model\.safetensors") as error:
        load(folder)
    assert str(error.value).startswith(f"{folder}: ")
    assert "\n" not in str(error.value)


@LOADERS
def test_absent_and_empty_folders_are_named(load, tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "absent"):
        with pytest.raises(ModelError, match=f"{name}: cannot be loaded"):
            load(tmp_path / name)


@pytest.mark.parametrize(
    ("load", "first"), [(load_pretrained, r"model\.layers"), (load_encoder, "layers")]
)
def test_missing_weights_are_never_drawn_at_random(load, first, folder):
    tensors = load_file(folder / WEIGHTS)
    kept = {name: tensor for name, tensor in tensors.items() if ".layers.1.mlp." not in name}
    save_file(kept, folder / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=rf"missing \(3, first {first}\.1\.mlp\."):
        load(folder)


@pytest.fixture
def log() -> Iterator[list[str]]:
    """What transformers would print: its own handler is bound to another stream here."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    transformers.logging.add_handler(handler)
    yield messages
    transformers.logging.remove_handler(handler)


@pytest.mark.parametrize("part", ["model", "body"])
def test_an_encoder_is_the_body_alone(part, tmp_path, model):
    (model if part == "model" else model.base_model).save_pretrained(tmp_path)
    encoder = load_encoder(tmp_path)
    assert encoder.get_output_embeddings() is None
    body = model.base_model.state_dict()
    assert encoder.state_dict().keys() == body.keys()
    assert all(torch.equal(tensor, body[name]) for name, tensor in encoder.state_dict().items())
    batch = pack_sequences([np.arange(4, 12), np.arange(7, 10)], row_length=12, pad_id=0)
    states = [hidden_states(each.eval(), batch, causal=False) for each in (encoder, model)]
    assert torch.equal(*states)


@LOADERS
def test_half_precision_is_widened(load, folder, model):
    model.to(torch.bfloat16).save_pretrained(folder)
    assert {weight.dtype for weight in load(folder).parameters()} == {torch.float32}


def test_an_encoder_uses_the_attention_that_batching_needs(folder):
    packed, padded = load_encoder(folder), load_encoder(folder, batching="padded")
    assert (batching_of(packed), batching_of(padded)) == ("packed", "padded")
    assert padded.config._attn_implementation == "sdpa"


def test_poolers_are_left_out(tmp_path):
    transformers.BertModel(tiny_config("bert")).save_pretrained(tmp_path / "with")
    transformers.BertForMaskedLM(tiny_config("bert")).save_pretrained(tmp_path / "without")
    for name in ("with", "without"):
        assert not any("pooler" in key for key in load_encoder(tmp_path / name).state_dict())


@LOADERS
def test_pickles_are_never_read(load, folder, model):
    (folder / WEIGHTS).unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"no model\.safetensors"):
        load(folder)


@LOADERS
def test_code_beside_a_model_is_neither_run_nor_asked_about(load, folder, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asks a question"))
    change_config(model_type="nonesuch", auto_map={"AutoConfig": "code.Config"})(folder)
    (folder / "code.py").write_text("raise SystemExit('ran')")
    with pytest.raises(ModelError, match="custom code"):
        load(folder)


@LOADERS
@pytest.mark.parametrize(
    "foreign",
    [
        {"attn_implementation": "someone/kernel"},
        {"_attn_implementation": {"": "someone/kernel:run"}},
        {"experts_implementation": "someone/kernel"},
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
        {"auto_map": {"AutoModelForMaskedLM": "code.Model"}},
        {"transformers_weights": "other.safetensors"},
        {"fusion_config": {"patch_embeddings": True}},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_stored_attention_settings_are_ignored(load, folder, foreign):
    plain = load(folder).config.to_dict()
    change_config(**foreign)(folder)
    assert load(folder).config.to_dict() == plain
    padded = load_encoder(folder, batching="padded")
    assert padded.config._attn_implementation == "sdpa"
    assert not padded.config.to_dict().keys() & {*foreign} - {"_attn_implementation"}


@LOADERS
@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/elsewhere/model.safetensors", "other.safetensors", 3]
)
def test_an_index_names_files_of_its_folder_alone(load, folder, model, name):
    (folder / WEIGHTS).unlink()
    model.save_pretrained(folder, max_shard_size="200KB")
    load(folder)
    path = folder / "model.safetensors.index.json"
    names = read_json(path)["weight_map"]
    edit_json(path, weight_map={**names, "lm_head.weight": name})
    with pytest.raises(ModelError, match=r"index\.json: names .* file of weights") as error:
        load(folder)
    assert repr(name) in str(error.value)


@LOADERS
@pytest.mark.parametrize("content", ["[]", "{", '{"weight_map": 3}'])
def test_a_damaged_index_is_named(load, folder, content):
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelError, match=r"model\.safetensors\.index\.json: damaged"):
        load(folder)


@LOADERS
def test_files_that_no_identity_covers_are_not_weights(load, folder):
    """transformers would read these instead of the others."""
    shutil.copy(folder / WEIGHTS, folder / "shard-00001-model-00001-of-00001.safetensors")
    with pytest.raises(ModelError, match=r"shard-00001-model-\S+: .* distributed"):
        load(folder)


@LOADERS
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_quantised_weights_are_refused(load, folder, dtype):
    tensors = load_file(folder / WEIGHTS)
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name] = (100 * tensors[name]).to(dtype)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=rf"{name} is stored as \w+: quantized"):
        load(folder)


@LOADERS
def test_nothing_is_printed(load, tmp_path, capfd, log):
    """transformers would draw a bar, and a table of the pooler and the second head."""
    transformers.BertForPreTraining(tiny_config("bert")).save_pretrained(tmp_path)
    capfd.readouterr()
    load(tmp_path)
    assert capfd.readouterr() == ("", "")
    assert not log
    transformers.logging.get_logger("transformers").warning("back to normal")
    assert log == ["back to normal"]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (transformers.T5Config(d_model=16, num_layers=1), "'t5' is not a single stack of layers"),
        (transformers.Gemma3Config(), "type 'gemma3' reads more than text"),
    ],
    ids=["encoder-decoder", "images"],
)
def test_models_of_another_kind_are_refused(config, reason, tmp_path):
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=reason):
        load_encoder(tmp_path)
