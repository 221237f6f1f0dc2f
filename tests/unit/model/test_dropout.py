"""Dropout on a CPU: how much is dropped, what is kept, and from which random numbers."""

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from biphasic.data.packing import pack_sequences
from biphasic.model.compute.forward import hidden_states
from biphasic.model.cpu.kernels import dropout, speed_up_dropout
from biphasic.model.loading.build import load_encoder, load_pretrained, new_model
from families import FAMILIES, SHARED, save_family, tiny_config

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
