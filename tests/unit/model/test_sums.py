"""Gradients of weights that are sums over tokens have their true size in bf16 too."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from biphasic.model.cpu.kernels import use_own_layers

NUM_TOKENS = 16_384


def gradients(module, inputs, gradient):
    """Return the output, and the gradients of the inputs and of the weights."""
    inputs = inputs.clone()
    if inputs.is_floating_point():
        inputs.requires_grad_()
    output = module(inputs)
    output.backward(gradient.to(output.dtype))
    return output, inputs.grad, [weight.grad for weight in module.parameters()]


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("shape", [(NUM_TOKENS,), (4, NUM_TOKENS // 4)], ids=["packed", "padded"])
def test_layer_norm(shape, bias, one_thread):
    torch.manual_seed(0)
    inputs, gradient = torch.randn(*shape, 16).bfloat16(), torch.randn(*shape, 16) + 0.1
    theirs = nn.LayerNorm(16, bias=bias).bfloat16()
    ours = nn.Sequential(deepcopy(theirs))
    use_own_layers(ours)
    output, of_inputs, of_weights = gradients(ours, inputs, gradient)
    expected, of_their_inputs, of_their_weights = gradients(theirs, inputs, gradient)
    assert torch.equal(output, expected)
    assert torch.equal(of_inputs, of_their_inputs)
    exact = gradients(deepcopy(theirs).float(), inputs.float(), gradient.bfloat16())[2]
    for found, right in zip(of_weights, exact, strict=True):
        assert torch.allclose(found.float(), right, rtol=2**-8, atol=2.0)
    if bias:  # what this corrects
        assert of_their_weights[1].norm() < 0.8 * exact[1].norm()


def test_few_rows(one_thread):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(2, 16), nn.Embedding(1000, 16)).bfloat16()
    words = model[1]
    use_own_layers(model)
    assert type(words) is nn.Embedding
    rows, gradient = torch.zeros(NUM_TOKENS, dtype=torch.long), torch.randn(NUM_TOKENS, 16) + 0.1
    output, _, [found] = gradients(model[0], rows, gradient)
    assert torch.equal(output, model[0].weight[rows])
    assert torch.allclose(found[0].float(), gradient.bfloat16().float().sum(0), rtol=2**-8)
    assert not found[1].any()


def test_fp32_stays_as_it_is(one_thread):
    theirs = nn.LayerNorm(16)
    ours = nn.Sequential(deepcopy(theirs))
    use_own_layers(ours)
    inputs, gradient = torch.randn(8, 16), torch.randn(8, 16)
    for found, expected in zip(
        gradients(ours, inputs, gradient)[2], gradients(theirs, inputs, gradient)[2], strict=True
    ):
        assert torch.equal(found, expected)
