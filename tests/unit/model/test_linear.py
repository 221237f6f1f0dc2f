"""Linear layers by every library against torch's own, in outputs and gradients."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from biphasic.model.cpu import products
from biphasic.model.cpu.kernels import use_own_layers
from biphasic.model.cpu.products import Products
from biphasic.model.loading.build import load_encoder
from families import save_family
from rounding import assert_as_exact


def layers(*, bias: bool, dtype: torch.dtype = torch.float32) -> tuple[nn.Sequential, ...]:
    """Return two layers by the libraries of the machine, by torch, and in fp64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(48, 32, bias=bias), nn.Linear(32, 64, bias=bias)).to(dtype)
    fast = deepcopy(plain)
    use_own_layers(fast)
    return fast, plain, deepcopy(plain).double()


def gradients(model: nn.Module, states: Tensor) -> list[Tensor]:
    """Return output and gradients of a scalar of it, the input's first."""
    states = states.clone().requires_grad_()
    output = model(states)
    drawn = torch.randn(output.shape, generator=torch.Generator().manual_seed(2)).bfloat16()
    inputs = [states, *model.parameters()]
    return [output, *torch.autograd.grad((output * drawn.to(output.dtype)).sum(), inputs)]


def assert_as_torch(models: tuple[nn.Sequential, ...], shape: tuple[int, ...]) -> None:
    """Compare outputs and gradients, the last model's in fp64."""
    dtype = models[0][0].weight.dtype
    states = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    assert_as_exact(*(gradients(each, states.to(each[0].weight.dtype)) for each in models))


def choose(monkeypatch, forward, input_gradient, weight_gradient, *, widens_bf16=False):
    chosen = Products(forward, input_gradient, weight_gradient, widens_bf16)
    monkeypatch.setattr(products, "products", lambda: chosen)


@pytest.fixture
def calls(monkeypatch):
    """The library of each product that is computed."""
    made = []
    multiply = products.multiply

    def counted(library, *factors):
        made.append(library)
        return multiply(library, *factors)

    monkeypatch.setattr(products, "multiply", counted)
    return made


@pytest.mark.parametrize("library", ["mkl", "onednn"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(48,), (1, 48), (7, 48), (3, 5, 48)])
def test_equals_the_exact_product(shape, bias, library, monkeypatch):
    choose(monkeypatch, library, library, library)
    assert_as_torch(layers(bias=bias), shape)


@pytest.mark.parametrize("shape", [(48,), (3, 5, 48)])
def test_widened_bf16_is_the_rounded_product_of_fp32(shape, monkeypatch):
    choose(monkeypatch, "onednn", "onednn", "mkl", widens_bf16=True)
    assert_as_torch(layers(bias=True, dtype=torch.bfloat16), shape)


def test_each_product_is_computed_by_its_library(monkeypatch, calls):
    choose(monkeypatch, "mkl", "onednn", "mkl")
    fast, *_ = layers(bias=False)
    fast(torch.ones(2, 48, requires_grad=True)).sum().backward()
    assert calls == ["mkl", "mkl", "onednn", "mkl", "onednn", "mkl"]


def test_bf16_is_left_to_torch_where_that_is_faster(monkeypatch, calls):
    choose(monkeypatch, "onednn", "onednn", "mkl", widens_bf16=False)
    fast, *_ = layers(bias=True)
    fast.bfloat16()(torch.ones(2, 48, dtype=torch.bfloat16)).sum().backward()
    assert calls == []


def test_encoders_compute_this_way(tmp_path, monkeypatch, calls):
    choose(monkeypatch, "onednn", "onednn", "mkl")
    model = load_encoder(save_family("bert", tmp_path / "bert"), batching="padded")
    model.save_pretrained(tmp_path / "again")  # what transformers writes is what it read
    assert load_encoder(tmp_path / "again").state_dict().keys() == model.state_dict().keys()
    model(input_ids=torch.ones(1, 3, dtype=torch.int64))
    assert set(calls) == {"onednn"}
