"""LoRA: what it trains and leaves alone, resumes to the bit, and the same model merged."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch.testing import assert_close
from transformers import GPT2Config

from biphasic.data.packing import pack_sequences
from biphasic.errors import ConfigError
from biphasic.model.compute.forward import hidden_states
from biphasic.model.cpu.kernels import cpu_kernels
from biphasic.model.head import language_model_head
from biphasic.model.loading.build import load_pretrained, load_weights
from biphasic.model.loading.hub import fetch_model
from biphasic.model.lora import Adapter, add_lora, load_lora, lora_targets, trains_lora
from biphasic.model.shape import Lora
from biphasic.training.lineage import Lineage, TrainingData
from biphasic.training.loop import train_segment
from families import save_family, with_head
from refusals import refusals, refused
from short_runs import CLM, MLM, Killed, assert_same, killing

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unprobed")]

LORA = {"rank": 2, "targets": []}
WITH = {**MLM, "lora": LORA}
EPSILON = 2.0**-24  # of fp32
FAMILIES = ["llama", "eurobert", "qwen3", "gpt2", "modernbert", "gemma3", "biogpt"]


@pytest.fixture(scope="module", params=FAMILIES)
def pretrained(request, tmp_path_factory, training_data) -> TrainingData:
    folder = tmp_path_factory.mktemp("pretrained") / request.param
    size = training_data.tokenizer.vocab_size
    if request.param == "gpt2":  # its matrices are transposed
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
        config = GPT2Config(vocab_size=size, bos_token_id=1, eos_token_id=2, **sizes)
        with_head(config).save_pretrained(folder)
    else:
        save_family(request.param, folder, vocab_size=size)
    return dataclasses.replace(training_data, pretrained=fetch_model(folder))


def weights(folder: Path, name: str = "model") -> dict[str, torch.Tensor]:
    return load_file(folder / f"{name}.safetensors")


def same_states(one: Path, other: Path) -> None:
    assert_same(one, other)
    for name in ("lora.safetensors",):
        assert (one / name).is_file() == (other / name).is_file()
        if (one / name).is_file():
            assert (one / name).read_bytes() == (other / name).read_bytes()


def plain(name: str) -> str:
    return name.replace(".base_layer.", ".")


def test_only_additions_and_one_row_are_trained(pretrained, train, make_recipe):
    recipe = make_recipe(WITH, model={"pretrained": "tiny"}, precision="fp32")
    before, after = (train(recipe, data=pretrained, end=end) for end in (0, None))
    old, new, lora = weights(before), weights(after), weights(after, "lora")
    assert old.keys() == new.keys()
    for name, tensor in lora.items():
        if ".base_layer." in name:
            assert torch.equal(tensor, old[plain(name)])
    targets = {plain(name) for name in lora if name.endswith("base_layer.weight")}
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    (table,) = changed - targets
    assert targets <= changed
    rows = (old[table] != new[table]).any(1).nonzero().flatten().tolist()
    assert rows == [pretrained.tokenizer.mask_id]
    moments = {name.rpartition(".")[0] for name in weights(after, "optimizer")}
    assert moments == {name for name in lora if trains_lora(name)}


def test_merged_weights_are_those_of_the_formula(pretrained, train, make_recipe):
    recipe = make_recipe(WITH, model={"pretrained": "tiny"}, precision="fp32")
    state = train(recipe, data=pretrained)
    merged, lora = weights(state), {n: t.double() for n, t in weights(state, "lora").items()}
    for name, base in lora.items():
        if not name.endswith("base_layer.weight"):
            continue
        down, up = (lora[name.replace("base_layer", f"lora_{side}.default")] for side in "AB")
        change, size = 2 * up @ down, 2 * up.abs() @ down.abs()
        if change.shape != base.shape or pretrained.pretrained.folder.name == "gpt2":
            change, size = change.T, size.T
        bound = EPSILON * (base.abs() + (len(down) + 3) * size)
        assert ((merged[plain(name)].double() - (base + change)).abs() <= bound).all()


def test_merged_equals_unmerged(pretrained, train, make_recipe):
    """In fp64, what differs is that merged weights are rounded to fp32."""
    recipe = make_recipe(WITH, model={"pretrained": "tiny"}, precision="fp32")
    state = train(recipe, data=pretrained)
    whole = load_pretrained(state).double().eval()
    apart = load_pretrained(state)
    add_lora(apart, Lora(rank=2), seed=0, mask_id=pretrained.tokenizer.mask_id)
    load_lora(apart, weights(state, "lora"))
    apart = apart.double().eval()
    draws = np.random.default_rng(0)
    texts = [draws.integers(5, 300, length) for length in (1, 12, 30)]
    texts[1][3] = pretrained.tokenizer.mask_id
    batch = pack_sequences(texts, row_length=32, pad_id=0)
    with torch.no_grad():
        states = [hidden_states(model, batch, causal=False) for model in (whole, apart)]
        logits = [
            language_model_head(model).logits(state)
            for model, state in zip((whole, apart), states, strict=True)
        ]
    for one, other in (states, logits):
        # Rounding of a weight moves an output by at most about as much, in each of two layers.
        assert (one - other).abs().max() <= 100 * EPSILON * other.abs().max()


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`")  # peft reads it
def test_an_adapter_is_read_by_peft(pretrained, tmp_path, train, make_recipe):
    """In fp64, a body without the additions gives the merged states once peft has added them."""
    recipe = make_recipe(WITH, model={"pretrained": "tiny"}, precision="fp32")
    before, state = (train(recipe, data=pretrained, end=end) for end in (0, None))
    adapter = Adapter(Lora(rank=2), weights(state, "lora"))
    merged, body = (load_pretrained(state).base_model for _ in range(2))
    adapter.take_out(body)
    old, row = (
        dict(load_pretrained(before).base_model.named_parameters()),
        body.get_input_embeddings(),
    )
    for name, weight in body.named_parameters():
        if weight is not row.weight:
            assert torch.equal(weight, old[name]), name
    again = deepcopy(body)
    adapter.merge(again)
    assert_close(dict(again.named_parameters()), dict(merged.named_parameters()), rtol=0, atol=0)
    assert adapter.write(body, tmp_path, base="base") == sum(
        tensor.numel() for name, tensor in weights(state, "lora").items() if ".lora_" in name
    )
    body = PeftModel.from_pretrained(body, tmp_path).merge_and_unload()
    for name, weight in body.named_parameters():
        whole = merged.get_parameter(name)
        assert (weight - whole).abs().max() <= 4 * EPSILON * whole.abs().max(), name


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_interrupted_equals_uninterrupted(pretrained, precision, train, make_recipe):
    recipe = make_recipe(
        WITH, {**WITH, "steps": 2}, MLM, model={"pretrained": "tiny"}, precision=precision
    )
    whole = train(recipe, "whole", data=pretrained)
    killed = train_killed(train, recipe, pretrained, (2, 4, 6))
    same_states(killed, whole)


def train_killed(train: Callable[..., Path], recipe, data: TrainingData, steps) -> Path:
    for step in steps:
        options = {"checkpoint_every": 1, "report": killing(step)}
        with pytest.raises(Killed):
            train(recipe, "killed", data=data, options=options)
    return train(recipe, "killed", data=data)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_state_within_a_phase_is_continued(
    optimizer, tmp_path, training_data, train, make_recipe
):
    recipe = make_recipe(CLM, WITH, optimizer={"name": optimizer})
    whole = train(recipe, "whole")
    for start, end in ((0, 3), (3, 4), (4, 6)):
        part = train(recipe, "parts", start=start, end=end)
    assert weights(part, "lora").keys() == weights(whole, "lora").keys()
    for name in ("model", "lora", "optimizer"):
        for key, tensor in weights(whole, name).items():
            assert torch.equal(weights(part, name)[key], tensor), key


def test_a_segment_does_not_reach_over_the_beginning_of_lora(training_data, make_recipe, tmp_path):
    lineage = Lineage(make_recipe(CLM, WITH), training_data.fingerprint)
    with pytest.raises(ValueError, match="between the steps 0 and 4"):
        train_segment(lineage, training_data, tmp_path, start=0, end=4)


def test_each_phase_begins_anew_from_the_merged_weights(train, make_recipe):
    recipe = make_recipe(CLM, WITH, {**CLM, "lora": {"rank": 3}})
    last = train(recipe)
    border = train(recipe, end=6, start=3)
    lora, before = weights(last, "lora"), weights(border)
    for name, tensor in lora.items():
        if ".base_layer." in name:
            assert torch.equal(tensor, before[plain(name)])
        elif ".lora_A." in name:
            assert len(tensor) == 3


@refusals(
    {
        "an unknown target": (
            {"rank": 2, "targets": ["q_proj", "query"]}, ConfigError,
            "phases.1.lora.targets", "'query'", "q_proj", "down_proj",
        ),
        "a head": ({"rank": 2, "targets": ["lm_head"]}, ConfigError, "'lm_head'"),
    }
)  # fmt: skip
def test_targets_that_the_model_lacks_are_refused_before_any_step(
    given, error, parts, tmp_path, train, make_recipe
):
    recipe = make_recipe(CLM, {**MLM, "lora": given})
    refused(error, parts, train, recipe, options={"checkpoint_every": 1})
    assert not list(tmp_path.rglob("*.safetensors"))


def test_targets_are_the_only_changed_matrices(train, make_recipe):
    targets = ["q_proj", "mlp.up_proj"]
    recipe = make_recipe(CLM, {**MLM, "lora": {"rank": 1, "alpha": 3.5, "targets": targets}})
    lora = weights(train(recipe), "lora")
    bases = {name.split(".base_layer")[0] for name in lora if ".base_layer." in name}
    assert bases == {
        f"model.layers.{layer}.{name}"
        for layer in (0, 1)
        for name in ("self_attn.q_proj", targets[1])
    }


def test_without_peft_the_error_names_the_package(train, make_recipe, monkeypatch):
    monkeypatch.setattr("biphasic.model.lora.find_spec", lambda _: None)
    parts = ["phases.1.lora", "peft", "pip install"]
    refused(ConfigError, parts, train, make_recipe(CLM, WITH))


def test_peft_is_imported_for_lora_alone():
    code = "import sys, biphasic.training.loop; assert 'peft' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_gradients_are_those_of_the_chain_rule(pretrained):
    """The gradients of A and B follow from the dense one, which training by itself computes."""
    model = load_pretrained(pretrained.pretrained.folder)
    mask_id = pretrained.tokenizer.mask_id
    adapted = deepcopy(model)
    add_lora(adapted, Lora(rank=2, alpha=6), seed=1, mask_id=mask_id)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(std=0.02, generator=torch.Generator().manual_seed(2))
    own = dict(adapted.named_parameters())
    merged = {plain(name): tensor.detach() for name, tensor in own.items() if not trains_lora(name)}
    for name in lora_targets(model, Lora(rank=2)):
        down, up = (own[f"{name}.lora_{side}.default.weight"].detach() for side in "AB")
        change = 3 * up @ down
        is_turned = pretrained.pretrained.folder.name == "gpt2"
        merged[f"{name}.weight"] = merged[f"{name}.weight"] + (change.T if is_turned else change)
    buffers = {n: b for n, b in model.named_buffers() if n in model.state_dict()}
    load_weights(model, {**merged, **buffers})
    texts = [np.random.default_rng(0).integers(5, 300, 30)]
    texts[0][[3, 7]] = mask_id
    batch = pack_sequences(texts, row_length=32, pad_id=0)
    target = torch.randn(32, model.config.hidden_size, generator=torch.Generator().manual_seed(3))
    for each in (model, adapted):
        with cpu_kernels(True):
            (hidden_states(each.train(), batch, causal=False) * target).sum().backward()
    dense = dict(model.named_parameters())
    for name in lora_targets(model, Lora(rank=2)):
        gradient = dense[f"{name}.weight"].grad
        if pretrained.pretrained.folder.name == "gpt2":
            gradient = gradient.T
        down, up = (own[f"{name}.lora_{side}.default.weight"] for side in "AB")
        torch.testing.assert_close(up.grad, 3 * gradient @ down.T, rtol=1e-3, atol=2e-4)
        torch.testing.assert_close(down.grad, 3 * up.T @ gradient, rtol=1e-3, atol=2e-4)
    (row,) = [tensor for name, tensor in own.items() if name.endswith("mask_row")]
    table = model.get_input_embeddings().weight.grad
    torch.testing.assert_close(row.grad, table[mask_id], rtol=1e-3, atol=2e-4)
    assert all(tensor.grad is None for name, tensor in own.items() if not trains_lora(name))
