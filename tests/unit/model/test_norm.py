"""Norms are those of transformers, to the last bit."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from transformers.models.eurobert.modeling_eurobert import EuroBertRMSNorm
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from biphasic.model.cpu.kernels import cpu_kernels, use_own_layers
from rounding import assert_as_exact, exactly


@pytest.mark.parametrize("kind", [EuroBertRMSNorm, Qwen3RMSNorm])
def test_norms_with_the_code_of_llama_s_have_our_backward_pass(kind):
    model = nn.Sequential(GemmaRMSNorm(8), kind(8), deepcopy(kind(8)).bfloat16())
    own = deepcopy(model[2])
    use_own_layers(model)
    assert type(model[0]) is GemmaRMSNorm
    assert type(model[1]) is not kind
    inputs = torch.arange(8.0).bfloat16()
    with cpu_kernels(True):
        assert "_ShortNorm" in type(model[1](torch.ones(8)).grad_fn).__name__
        assert torch.equal(model[2](inputs), own(inputs))


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
