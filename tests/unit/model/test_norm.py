"""Norms are those of transformers, to the last bit."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from transformers.models.eurobert.modeling_eurobert import EuroBertRMSNorm
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from biphasic.model.compute.norm import speed_up_norms
from rounding import assert_as_exact, exactly


@pytest.mark.parametrize("kind", [EuroBertRMSNorm, Qwen3RMSNorm])
@pytest.mark.parametrize(
    "shape", [(2, 40, 192), (2, 3, 40, 64), (1, 1, 8)], ids=["rows", "heads", "one token"]
)
def test_values_and_gradients_are_transformers_own(kind, shape, one_thread):
    generator = torch.Generator().manual_seed(1)
    theirs = kind(shape[-1], 1e-5)
    nn.init.normal_(theirs.weight, generator=generator)
    ours = nn.Sequential(deepcopy(theirs))
    speed_up_norms(ours)
    assert type(ours[0]) is not kind
    drawn, gradient = (3 * torch.randn(shape, generator=generator) for _ in range(2))
    found = []
    for module in (theirs, ours[0]):
        inputs = drawn.clone().transpose(0, -2).requires_grad_()  # as heads are: not contiguous
        output = module(inputs)
        output.backward(gradient.transpose(0, -2))
        found.append((output, inputs.grad, module.weight.grad))
    for expected, actual in zip(*found, strict=True):
        assert torch.equal(expected, actual)


def test_other_norms_and_precisions_stay_as_they_are():
    model = nn.Sequential(GemmaRMSNorm(8), nn.LayerNorm(8), EuroBertRMSNorm(8))
    own = deepcopy(model[2]).bfloat16()
    speed_up_norms(model)
    assert [type(module) for module in model[:2]] == [GemmaRMSNorm, nn.LayerNorm]
    inputs = torch.arange(8.0).bfloat16()
    assert torch.equal(model[2].bfloat16()(inputs), own(inputs))


def test_bounds_of_rounding_are_torch_s_errors_against_fp64():
    """What parity tests rely on: norms of transformers round to fp32, but for `exactly`."""
    states = 3 * torch.randn(40, 64, generator=torch.Generator().manual_seed(1))
    norm = EuroBertRMSNorm(64, 1e-5).requires_grad_(requires_grad=False)
    theirs, inputs = norm(states), states.double()
    by_hand = inputs / (inputs.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    exact = exactly(lambda: norm.double()(inputs))
    torch.testing.assert_close(exact, by_hand, rtol=1e-14, atol=1e-14)
    assert (norm(inputs) - by_hand).abs().max() > 1e-8
    assert_as_exact([theirs], [theirs], [exact])
    for wrong in (theirs * (1 + 5e-6), theirs.half().float(), theirs * float("nan")):
        with pytest.raises(AssertionError, match="tensor 0: error"):
            assert_as_exact([wrong], [theirs], [exact])
