"""Activations that are computed twice."""

import pytest
import torch

from biphasic.errors import ModelError
from biphasic.model.compute import attention, layers
from biphasic.training import run
from short_runs import CLM, MIX, assert_same

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_bit_equal(train, make_recipe, precision):
    recipe = make_recipe(CLM, {**MIX, "steps": 2}, precision=precision)
    kept = train(recipe, "kept")
    again = train(recipe, "again", activation_checkpointing=True)
    assert_same(kept, again)


def test_layers_compute_twice(train, make_recipe, monkeypatch):
    calls: list[int] = []
    original = attention.packed_attention

    def counted(module, *arguments, **options):
        if module.training and torch.is_grad_enabled():  # the probe looks at a model in eval mode
            calls.append(1)
        return original(module, *arguments, **options)

    monkeypatch.setattr(attention, "packed_attention", counted)
    recipe = make_recipe({**CLM, "steps": 1})
    counts = []
    for on in (False, True):
        calls.clear()
        train(recipe, str(on), activation_checkpointing=on)
        counts.append(len(calls))
    assert counts[1] == 2 * counts[0] > 0


def test_families_that_cannot_are_refused(training_data, make_recipe, monkeypatch):
    model = run.first_model(make_recipe(), training_data)
    monkeypatch.setattr(type(model), "supports_gradient_checkpointing", False)
    with pytest.raises(ModelError, match="not support activation checkpointing"):
        layers.recompute_activations(model)
