"""EuroBERT's last layer on predicted tokens only: the same loss and gradients as on all."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import EuroBertForMaskedLM

from biphasic.data.packing import pack_sequences
from biphasic.model.compute import layers
from biphasic.model.compute.layers import recompute_activations
from biphasic.model.loading.build import new_model
from biphasic.objectives.supervision import Supervision
from biphasic.training.step.input import Pass, pass_loss
from families import tiny_config
from rounding import assert_as_exact, exactly

ROWS = pack_sequences(
    [np.arange(4, 12), np.arange(30, 35), np.arange(50, 60)], row_length=16, pad_id=0
)
PREDICTED = np.array([2, 9, 12, 19, 25])
SUPERVISION = Supervision(ROWS, PREDICTED, PREDICTED + 60, causal=False)


def loss_and_gradients(model, supervision=SUPERVISION):
    model.zero_grad()
    loss = pass_loss(model, Pass.of(supervision, first_position=0))
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


@pytest.fixture
def model():
    narrow = new_model(tiny_config("eurobert"), init_seed=3)
    layers.narrow_last_layer(narrow)
    return narrow


@pytest.fixture
def read(model):
    """Tokens that the last MLP has read in each pass."""
    counts: list[int] = []
    last = model.base_model.layers[-1].mlp
    last.register_forward_pre_hook(lambda _, given: counts.append(given[0].shape[:-1].numel()))
    return counts


def test_loss_and_gradients_are_those_of_all_tokens(model, read, monkeypatch):
    narrow = loss_and_gradients(model)
    monkeypatch.setattr(layers, "_NarrowLayer", type(None))  # no layer is one
    whole = loss_and_gradients(model)
    assert read == [len(PREDICTED), ROWS.input_ids.size]
    assert all(gradient is not None and gradient.abs().sum() > 0 for gradient in whole)
    exact = exactly(lambda: loss_and_gradients(deepcopy(model).double()))
    exact[0] = exact[0].double()
    assert_as_exact(narrow, whole, exact)


@pytest.mark.parametrize(
    "changes",
    [{"causal": True}, {"positions": PREDICTED[:0], "labels": PREDICTED[:0]}],
    ids=["causal", "no label"],
)
def test_other_passes_read_all_tokens(model, read, changes):
    loss_and_gradients(model, replace(SUPERVISION, **changes))
    assert read == [ROWS.input_ids.size]


def test_recomputed_activations_give_the_same(model, read):
    model.train()
    stored = loss_and_gradients(model)
    recompute_activations(model)
    for expected, actual in zip(stored, loss_and_gradients(model), strict=True):
        assert torch.equal(expected, actual)
    assert read == 3 * [len(PREDICTED)]


def test_the_model_is_transformers_own_without_predicted_tokens(model):
    own = EuroBertForMaskedLM(tiny_config("eurobert")).eval()
    own.load_state_dict(model.state_dict())
    model.set_attn_implementation("eager")
    own.set_attn_implementation("eager")
    ids = torch.arange(4, 20)[None]
    ours, theirs = model.eval()(ids).logits, own(ids).logits
    assert_as_exact([ours], [theirs], [exactly(lambda: own.double()(ids).logits)])


def test_other_families_read_all_tokens():
    llama = new_model(tiny_config("llama"), init_seed=3)
    layers.narrow_last_layer(llama)
    assert not layers.is_narrow(llama)
    assert len(loss_and_gradients(llama)) > 1
