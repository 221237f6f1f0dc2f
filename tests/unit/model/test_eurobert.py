"""EuroBERT's layers and norms in training on a CPU: transformers' results, by other kernels."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from biphasic.data.packing import pack_sequences
from biphasic.model.compute.forward import hidden_states
from biphasic.model.compute.layers import recompute_activations
from biphasic.model.cpu import kernels
from biphasic.model.cpu.kernels import cpu_kernels
from biphasic.model.cpu.products import products
from biphasic.model.head import language_model_head
from biphasic.model.loading.build import new_model
from biphasic.objectives.supervision import Supervision
from biphasic.training.step.input import Pass, pass_loss
from families import tiny_config
from rounding import assert_as_exact, exactly

ROWS = pack_sequences([np.arange(n) % 50 for n in (90, 40, 130)], row_length=130, pad_id=0)
SUPERVISION = Supervision(ROWS, np.arange(100), np.arange(100) % 50, causal=True)
OWN = {
    "attention": (kernels, "_ByDocument"),
    "norms": (kernels, "_ShortNorm"),
    "rotary embeddings": (kernels, "_Rotated"),
    "products": (kernels, "_Products"),
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


def in_fp64(model, *, causal):
    """The same in fp64, by torch's kernels, whole logits and cross-entropy."""
    model = deepcopy(model).double()
    model.zero_grad()
    states = hidden_states(model, ROWS, causal=causal)[SUPERVISION.positions]
    labels = torch.from_numpy(SUPERVISION.labels)
    loss = cross_entropy(language_model_head(model).logits(states), labels, reduction="sum")
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), gradients


def assert_as_torch(model, *, causal=True, freeze=()):
    """Compare our kernels' results with those of torch's, by their errors."""
    (loss, theirs), (own_loss, ours) = (
        loss_and_gradients(model, are_on=are_on, causal=causal, freeze=freeze)
        for are_on in (False, True)
    )
    exact_loss, exact = exactly(lambda: in_fp64(model, causal=causal))
    assert ours.keys() == theirs.keys() == exact.keys()
    assert all(gradient.any() for gradient in exact.values())
    found = ([each_loss, *each.values()] for each_loss, each in (
        (own_loss, ours), (loss, theirs), (exact_loss, exact)
    ))  # fmt: skip
    assert_as_exact(*found)


@pytest.fixture
def model():
    return new_model(tiny_config("eurobert"), init_seed=3).train()


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
    loss_and_gradients(model, are_on=False, causal=causal)
    assert not any(calls.values())
    assert_as_torch(model, causal=causal)
    layers = model.config.num_hidden_layers
    assert calls == {
        "attention": layers,
        "norms": 2 * layers + 1,
        "rotary embeddings": 2 * layers,
        "products": 2 * layers,
    }


def test_without_our_kernels_the_model_is_the_same_to_the_last_bit(model):
    theirs = deepcopy(model)
    for module in theirs.modules():
        if type(module).__module__ == kernels.__name__:
            module.__class__ = type(module).__base__
    expected, actual = (loss_and_gradients(each, are_on=False) for each in (theirs, model))
    assert torch.equal(expected[0], actual[0])
    for name, gradient in expected[1].items():
        assert torch.equal(actual[1][name], gradient)


@pytest.mark.parametrize("library", ["mkl", "onednn"])
def test_either_library_sums_gradients_of_a_shared_input(model, monkeypatch, library):
    if library == "onednn" and not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    chosen = products()._replace(input_gradient=library)
    monkeypatch.setattr("biphasic.model.cpu.products.products", lambda: chosen)
    assert_as_torch(model)


@pytest.mark.parametrize(
    "freeze", [["embed_tokens"], ["q_proj", "up_proj"], ["layers.0", "embed_tokens"]], ids=str
)
def test_frozen_weights_get_no_gradient(model, freeze):
    assert_as_torch(model, freeze=freeze)


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
    assert_as_torch(model)
    assert calls["products"] == 0


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "modernbert"])
def test_other_families(family, calls):
    model = new_model(tiny_config(family), init_seed=3).eval()
    assert_as_torch(model, causal=False)
    assert calls["rotary embeddings"] == calls["products"] == 0
