"""EuroBERT's layers and norms in training on a CPU: transformers' results, by other kernels."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from biphasic.data.packing import pack_sequences
from biphasic.model.compute import documents, eurobert, norm
from biphasic.model.compute.eurobert import speed_up_eurobert
from biphasic.model.compute.kernels import cpu_kernels
from biphasic.model.compute.layers import recompute_activations
from biphasic.model.compute.products import products
from biphasic.model.loading.build import new_model
from biphasic.objectives.supervision import Supervision
from biphasic.training.step.passes import Pass, pass_loss
from families import tiny_config

ROWS = pack_sequences([np.arange(n) % 50 for n in (90, 40, 130)], row_length=130, pad_id=0)
SUPERVISION = Supervision(ROWS, np.arange(100), np.arange(100) % 50, causal=True)
OWN = {
    "attention": (documents, "_ByDocument"),
    "norms": (norm, "_ShortNorm"),
    "rotary embeddings": (eurobert, "_Rotated"),
    "products": (eurobert, "_Products"),
}


def loss_and_gradients(model, *, are_on, causal=True, freeze=()):
    model.zero_grad()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(part in name for part in freeze))
    given = Pass.of(replace(SUPERVISION, causal=causal), first_position=0)
    with cpu_kernels(are_on):
        loss = pass_loss(model, given)
        loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), gradients


def assert_close(actual, expected):
    assert expected[0] == pytest.approx(actual[0].item(), rel=1e-6)
    assert expected[1].keys() == actual[1].keys()
    for name, gradient in expected[1].items():
        assert gradient.abs().sum() > 0, name
        torch.testing.assert_close(actual[1][name], gradient, rtol=1e-4, atol=2e-4)


@pytest.fixture
def model():
    tiny = new_model(tiny_config("eurobert"), init_seed=3).train()
    speed_up_eurobert(tiny)
    return tiny


@pytest.fixture
def calls(monkeypatch):
    """Calls of each of our kernels."""
    counts = dict.fromkeys(OWN, 0)

    def counted(name, apply):
        def call(*args):
            counts[name] += 1
            return apply(*args)

        return call

    for name, (module, function) in OWN.items():
        kernel = getattr(module, function)
        monkeypatch.setattr(kernel, "apply", counted(name, kernel.apply))
    return counts


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_loss_and_gradients_are_those_of_torch_s_kernels(model, calls, causal):
    expected = loss_and_gradients(model, are_on=False, causal=causal)
    assert not any(calls.values())
    assert_close(loss_and_gradients(model, are_on=True, causal=causal), expected)
    layers = model.config.num_hidden_layers
    assert calls == {
        "attention": layers,
        "norms": 2 * layers + 1,
        "rotary embeddings": 2 * layers,
        "products": 2 * layers,
    }


def test_without_our_kernels_the_model_is_the_same_to_the_last_bit(model):
    own = new_model(tiny_config("eurobert"), init_seed=3).train()
    expected, actual = (loss_and_gradients(each, are_on=False) for each in (own, model))
    assert torch.equal(expected[0], actual[0])
    for name, gradient in expected[1].items():
        assert torch.equal(actual[1][name], gradient)


@pytest.mark.parametrize("library", ["mkl", "onednn"])
def test_either_library_sums_gradients_of_a_shared_input(model, monkeypatch, library):
    if library == "onednn" and not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    expected = loss_and_gradients(model, are_on=False)
    chosen = products()._replace(input_gradient=library)
    monkeypatch.setattr("biphasic.model.compute.linear.products", lambda: chosen)
    assert_close(loss_and_gradients(model, are_on=True), expected)


@pytest.mark.parametrize(
    "freeze", [["embed_tokens"], ["q_proj", "up_proj"], ["layers.0", "embed_tokens"]], ids=str
)
def test_frozen_weights_get_no_gradient(model, freeze):
    expected = loss_and_gradients(model, are_on=False, freeze=freeze)
    assert_close(loss_and_gradients(model, are_on=True, freeze=freeze), expected)


def test_recomputed_activations_give_the_same(model, calls):
    stored = loss_and_gradients(model, are_on=True)
    before = dict(calls)
    recompute_activations(model)
    recomputed = loss_and_gradients(model, are_on=True)
    assert torch.equal(stored[0], recomputed[0])
    for name, gradient in stored[1].items():
        assert torch.equal(recomputed[1][name], gradient)
    assert calls["attention"] == 3 * before["attention"]


def test_layers_with_biases(calls):
    config = tiny_config("eurobert")
    config.attention_bias = config.mlp_bias = True
    model = new_model(config, init_seed=3).train()
    speed_up_eurobert(model)
    expected = loss_and_gradients(model, are_on=False)
    assert_close(loss_and_gradients(model, are_on=True), expected)
    assert calls["products"] == 0


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "modernbert"])
def test_other_families(family, calls):
    model = new_model(tiny_config(family), init_seed=3).eval()
    speed_up_eurobert(model)
    expected = loss_and_gradients(model, are_on=False, causal=False)
    assert_close(loss_and_gradients(model, are_on=True, causal=False), expected)
    assert calls["rotary embeddings"] == calls["products"] == 0
