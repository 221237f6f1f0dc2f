"""Kernels for a CPU: norms, sums over tokens, linear layers and dropout are those of torch."""

from copy import deepcopy

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.models.eurobert.modeling_eurobert import EuroBertRMSNorm
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from biphasic.data.packing import pack_sequences
from biphasic.model.compute.forward import hidden_states
from biphasic.model.cpu import products
from biphasic.model.cpu.kernels import cpu_kernels, dropout, speed_up_dropout, use_own_layers
from biphasic.model.cpu.products import Products
from biphasic.model.loading.build import load_encoder, load_pretrained, new_model
from families import FAMILIES, SHARED, save_family, tiny_config
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


NUM_TOKENS = 16_384


def all_gradients(module, inputs, gradient):
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
    output, of_inputs, of_weights = all_gradients(ours, inputs, gradient)
    expected, of_their_inputs, of_their_weights = all_gradients(theirs, inputs, gradient)
    assert torch.equal(output, expected)
    assert torch.equal(of_inputs, of_their_inputs)
    exact = all_gradients(deepcopy(theirs).float(), inputs.float(), gradient.bfloat16())[2]
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
    output, _, [found] = all_gradients(model[0], rows, gradient)
    assert torch.equal(output, model[0].weight[rows])
    assert torch.allclose(found[0].float(), gradient.bfloat16().float().sum(0), rtol=2**-8)
    assert not found[1].any()


def test_fp32_stays_as_it_is(one_thread):
    theirs = nn.LayerNorm(16)
    ours = nn.Sequential(deepcopy(theirs))
    use_own_layers(ours)
    inputs, gradient = torch.randn(8, 16), torch.randn(8, 16)
    for found, expected in zip(
        all_gradients(ours, inputs, gradient)[2],
        all_gradients(theirs, inputs, gradient)[2],
        strict=True,
    ):
        assert torch.equal(found, expected)


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


SIZE = 400_000


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("chance", [0.02, 0.1, 0.5, 0.9])
def test_drops_the_share_and_scales_the_rest(chance, dtype):
    output = dropout(torch.ones(SIZE, dtype=dtype), chance)
    assert output.dtype == dtype
    is_dropped = output == 0
    # Five standard deviations of a share.
    tolerance = 5 * (chance * (1 - chance) / SIZE) ** 0.5
    assert is_dropped.float().mean().item() == pytest.approx(chance, abs=tolerance)
    rounded = round(chance * 65536) / 65536
    scale = torch.tensor(1 / (1 - rounded)).to(dtype)
    assert (output[~is_dropped] == scale).all()


@pytest.mark.parametrize("distance", [1, 2, 3, 4, 8])
def test_neighbours_are_dropped_independently(distance):
    """Four elements come from one random number."""
    is_dropped = (dropout(torch.ones(SIZE), 0.5) == 0).double() - 0.5
    correlation = (is_dropped[:-distance] * is_dropped[distance:]).mean() / 0.25
    assert abs(correlation.item()) < 5 / SIZE**0.5


def test_gradients_pass_where_elements_are_kept():
    states = torch.randn(7, 5, requires_grad=True)
    output = dropout(states, 0.3)
    output.sum().backward()
    torch.testing.assert_close(states.grad * states, output)
    assert (output == 0).any()


def test_the_generator_decides():
    states = torch.ones(1000)
    torch.manual_seed(5)
    first, second = dropout(states, 0.5), dropout(states, 0.5)
    torch.manual_seed(5)
    assert torch.equal(dropout(states, 0.5), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize(("chance", "expected"), [(0.0, 1.0), (1.0, 0.0)])
def test_none_and_all(chance, expected):
    assert (dropout(torch.ones(50), chance) == expected).all()


def test_layers_drop_in_training_alone(monkeypatch):
    model = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.0))
    speed_up_dropout(model)
    monkeypatch.setattr(torch.nn.functional, "dropout", lambda *_: pytest.fail("torch's own"))
    states = torch.ones(1000)
    assert (model(states) == 0).any()
    assert torch.equal(model.eval()(states), states)


def test_encoders_drop_this_way(tmp_path, monkeypatch):
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(tmp_path)
    model = load_encoder(tmp_path)
    monkeypatch.setattr("biphasic.model.cpu.kernels.dropout", lambda *_: pytest.fail("our own"))
    layers = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    assert len(layers) == 4  # embeddings, attention, and behind attention and MLP
    for layer in layers:
        with pytest.raises(BaseException, match="our own"):
            layer.train()(torch.ones(3))


RATES = (
    "attention_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob", "resid_pdrop",
    "embd_pdrop", "embedding_dropout", "mlp_dropout",
)  # fmt: skip


@pytest.mark.parametrize("way", ["new", "loaded"])
@pytest.mark.parametrize("family", FAMILIES)
def test_pretraining_drops_nothing(family, way, tmp_path):
    config = tiny_config(family)
    rates = {name: 0.5 for name in RATES if hasattr(config, name)}
    assert rates
    if way == "new":
        model = new_model(tiny_config(family, **rates), init_seed=0)
    else:
        model = load_pretrained(save_family(family, tmp_path, **rates))
    batch = pack_sequences([np.arange(4, 14)], row_length=12, pad_id=0)
    trained = hidden_states(model.train(), batch, causal=False)
    assert torch.equal(trained, hidden_states(model.eval(), batch, causal=False))
    assert all(getattr(model.config, name) == 0.5 for name in rates)  # for fine-tuning


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (transformers.BioGptConfig, {"layerdrop": 0.9}),
        (transformers.MixtralConfig, {"router_jitter_noise": 0.1, "num_key_value_heads": 2}),
    ],
)
def test_pretraining_omits_no_layer_and_adds_no_noise(kind, settings):
    model = new_model(kind(**SHARED, **settings), init_seed=0)
    batch = pack_sequences([np.arange(4, 14)], row_length=12, pad_id=0)
    trained = hidden_states(model.train(), batch, causal=False)
    assert torch.equal(trained, hidden_states(model.eval(), batch, causal=False))
