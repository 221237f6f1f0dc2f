"""oneDNN's linear layers against torch's own, in outputs and gradients."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from biphasic.model.compute.linear import speed_up_linear_layers
from biphasic.model.loading.build import load_encoder
from families import save_family

# Sums of 48 products of numbers around 1, in fp32.
TOLERANCE = 2e-5


def layers(*, bias: bool) -> tuple[nn.Sequential, nn.Sequential]:
    """Return two layers in fp64, and the same ones in fp32 by oneDNN."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        exact = nn.Sequential(nn.Linear(48, 32, bias=bias), nn.Linear(32, 16, bias=bias)).double()
    fast = deepcopy(exact).float()
    speed_up_linear_layers(fast)
    return exact, fast


def gradients(model: nn.Module, states: Tensor) -> list[Tensor]:
    """Return output and gradients of a scalar of it, the input's first."""
    states = states.clone().requires_grad_()
    output = model(states)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(2))
    inputs = [states, *model.parameters()]
    return [output, *torch.autograd.grad((output * weights).sum(), inputs)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(48,), (1, 48), (7, 48), (3, 5, 48)])
def test_equals_the_exact_product(shape, bias):
    exact, fast = layers(bias=bias)
    states = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    for got, wanted in zip(gradients(fast, states), gradients(exact, states.double()), strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), wanted, atol=TOLERANCE, rtol=TOLERANCE)


def test_frozen_weights_get_no_gradient():
    _, fast = layers(bias=True)
    fast[0].requires_grad_(requires_grad=False)
    fast(torch.ones(2, 48)).sum().backward()
    assert [parameter.grad is None for parameter in fast.parameters()] == [True, True, False, False]


@pytest.mark.parametrize("shape", [(48,), (3, 5, 48)])
def test_bf16_without_kernels_is_the_rounded_product_of_fp32(shape, monkeypatch):
    monkeypatch.setattr("biphasic.model.compute.linear._HAS_BF16_KERNELS", False)
    _, fast = layers(bias=True)
    layer = fast[0].bfloat16()
    plain = deepcopy(layer)
    plain.__class__ = nn.Linear
    states = torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    got, wanted = gradients(layer, states), gradients(plain, states)
    for number, expected in zip(got, wanted, strict=True):
        assert number.dtype == torch.bfloat16
        # Both are rounded from sums in fp32: neighbouring numbers of bf16 at most.
        torch.testing.assert_close(number, expected, atol=2**-8, rtol=2**-7)


def test_bf16_with_kernels_uses_torch(monkeypatch):
    monkeypatch.setattr("biphasic.model.compute.linear._HAS_BF16_KERNELS", True)
    _, fast = layers(bias=True)
    monkeypatch.setattr(
        "biphasic.model.compute.linear._by_onednn", lambda *_: pytest.fail("by oneDNN")
    )
    assert fast.bfloat16()(torch.ones(2, 48, dtype=torch.bfloat16)).dtype == torch.bfloat16
    with pytest.raises(BaseException, match="by oneDNN"):
        fast.float()(torch.ones(2, 48))


def test_names_and_weights_stay():
    exact, fast = layers(bias=True)
    assert isinstance(fast[0], nn.Linear)
    assert all(
        torch.equal(tensor, exact.state_dict()[name].float())
        for name, tensor in fast.state_dict().items()
    )


def test_without_onednn_nothing_is_done(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    _, fast = layers(bias=True)
    assert type(fast[0]) is nn.Linear


def test_encoders_compute_this_way(tmp_path, monkeypatch):
    model = load_encoder(save_family("bert", tmp_path / "bert"), batching="padded")
    model.save_pretrained(tmp_path / "again")  # what transformers writes is what it read
    assert load_encoder(tmp_path / "again").state_dict().keys() == model.state_dict().keys()
    monkeypatch.setattr(
        "biphasic.model.compute.linear._by_onednn", lambda *_: pytest.fail("by oneDNN")
    )
    with pytest.raises(BaseException, match="by oneDNN"):
        model(input_ids=torch.ones(1, 3, dtype=torch.int64))
