"""Updates on fp32 masters and without; parameters that do not train."""

import pytest
import torch
from torch import nn

from biphasic.errors import ConfigError, TrainingError
from biphasic.model.loading.build import architecture_config, new_model
from biphasic.model.shape import PRESETS
from biphasic.training.optimizers.adamw import AdamW
from biphasic.training.optimizers.muon import Muon
from biphasic.training.optimizers.optimizer import OptimizerConfig
from biphasic.training.step.optimizer import (
    Optimizer,
    freeze,
    frozen_names,
    layer_matrices,
    set_head_precision,
    set_precision,
)
from biphasic.training.step.weights import MasterWeights

SETTINGS = AdamW()
MOMENTS = {"adamw": {"exp_avg", "exp_avg_sq", "step"}}
MOMENTS["muon"] = {*MOMENTS["adamw"], "momentum_buffer"}
every_optimizer = pytest.mark.parametrize(
    "settings", [SETTINGS, Muon(name="muon")], ids=lambda settings: settings.name
)
IDS = {"bos": 0, "eos": 1, "pad": 2, "mask": 3}


def model_of(precision):
    config = architecture_config(PRESETS["pico"], vocab_size=40, max_seqlen=32, special_ids=IDS)
    model = new_model(config, init_seed=0)
    return model, set_precision(model, precision)


def optimizer_of(model, weights: MasterWeights, settings: OptimizerConfig) -> Optimizer:
    return Optimizer(weights, settings, layer_matrices=layer_matrices(model))


def copies(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def everything(weights: MasterWeights, optimizer: Optimizer) -> dict[str, torch.Tensor]:
    """Copy all that an update may change."""
    working = {f"working {name}": weight for name, weight in weights.working.items()}
    return copies({**weights.masters, **working, **optimizer.state_tensors()})


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def single(value: float, dtype: torch.dtype) -> tuple[nn.Parameter, MasterWeights]:
    """One weight, and its fp32 master."""
    master = torch.full((1, 1), value)
    working = nn.Parameter(master.to(dtype))
    return working, MasterWeights({"w": working}, {"w": master})


def step(optimizer: Optimizer, weights: MasterWeights, rate: float, scale: float = 1.0) -> float:
    generator = torch.Generator().manual_seed(0)
    for parameter in weights.working.values():
        noise = torch.randn(parameter.shape, generator=generator) * scale
        parameter.grad = noise.to(parameter.dtype)
    weights.gather_gradients()
    return optimizer.step(rate)


def test_small_updates_accumulate_in_bf16():
    # bf16 has 8 bits: next to 1.0 its neighbours are 2**-8 below and 2**-7 above.
    working, weights = single(1.0, torch.bfloat16)
    optimizer = Optimizer(weights, AdamW(weight_decay=0.0))
    seen = []
    for _ in range(100):
        working.grad = torch.ones((1, 1), dtype=torch.bfloat16)
        weights.gather_gradients()
        optimizer.step(1e-4)  # each update is about 1e-4: twenty times below the resolution
        seen.append(float(working.detach()))
    assert float(weights.masters["w"]) == pytest.approx(0.99, abs=1e-4)
    assert seen[0] == 1.0
    assert seen[-1] == float(torch.tensor(0.99).bfloat16())


def test_fp32_equals_torch_adamw():
    model, weights = model_of("fp32")
    twin, _ = model_of("fp32")
    assert all(weights.masters[name] is parameter for name, parameter in model.named_parameters())
    optimizer = Optimizer(weights, AdamW(max_gradient_norm=0.5))
    reference = torch.optim.AdamW(
        [
            {"params": [p for p in twin.parameters() if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in twin.parameters() if p.ndim == 1], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.95),
        eps=1e-5,
    )
    for rate in (1e-3, 2e-3, 5e-4):
        step(optimizer, weights, rate)
        generator = torch.Generator().manual_seed(0)
        for parameter in twin.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
        for group in reference.param_groups:
            group["lr"] = rate
        reference.step()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_bf16_keeps_embeddings_and_rotary_frequencies_in_fp32():
    plain, _ = model_of("fp32")
    model, weights = model_of("bf16")
    embedding = model.get_input_embeddings().weight
    for name, parameter in model.named_parameters():
        expected = torch.float32 if parameter is embedding else torch.bfloat16
        assert parameter.dtype == expected, name
        assert weights.masters[name].dtype == torch.float32
        assert torch.equal(weights.masters[name].detach(), plain.get_parameter(name).detach())
        assert torch.equal(parameter, plain.get_parameter(name).to(parameter.dtype))
    buffers = dict(model.named_buffers())
    assert any("inv_freq" in name for name in buffers)
    for name, buffer in plain.named_buffers():
        assert torch.equal(buffers[name], buffer)
        assert buffers[name].dtype == buffer.dtype
    output = model.get_input_embeddings()(torch.tensor([[5]]))
    assert output.dtype == torch.bfloat16


@every_optimizer
def test_working_copies_follow_their_masters(settings):
    model, weights = model_of("bf16")
    before = copies(weights.masters)
    optimizer = optimizer_of(model, weights, settings)
    step(optimizer, weights, 1e-2)
    for name, working in weights.working.items():
        assert not torch.equal(weights.masters[name].detach(), before[name])
        assert torch.equal(working, weights.masters[name].to(working.dtype))
        assert working.grad is None
        assert weights.masters[name].grad is None


def test_the_studys_way_keeps_nothing_in_fp32():
    plain, _ = model_of("fp32")
    model, weights = model_of("paper")
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.bfloat16, name
        assert weights.masters[name] is weights.working[name] is parameter
        assert torch.equal(parameter, plain.get_parameter(name).bfloat16())
    for name, buffer in plain.named_buffers():  # rotary frequencies
        assert torch.equal(dict(model.named_buffers())[name], buffer)
    optimizer = Optimizer(weights, SETTINGS)
    step(optimizer, weights, 1e-3)
    moments = optimizer.state_tensors()
    assert {moment.dtype for name, moment in moments.items() if not name.endswith(".step")} == {
        torch.bfloat16
    }


def test_the_studys_way_loses_small_updates():
    # Weights of 1 are 2**-7 apart above and 2**-8 below: updates of 1e-4 are rounded away.
    working = nn.Parameter(torch.ones(1, 1, dtype=torch.bfloat16))
    weights = MasterWeights({"w": working}, {"w": working})
    optimizer = Optimizer(weights, AdamW(weight_decay=0.0))
    for rate, expected in [(1e-4, 1.0)] * 100 + [(1e-2, 1 - 2**-7)]:
        working.grad = torch.ones((1, 1), dtype=torch.bfloat16)
        weights.gather_gradients()
        optimizer.step(rate)
        assert float(working.detach()) == pytest.approx(expected, abs=2**-8)
        assert (float(working.detach()) == 1.0) == (expected == 1.0)


def test_heads_keep_their_weights_as_the_model_does():
    states = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    outputs = {}
    for precision in ("fp32", "bf16", "paper"):
        head = nn.Linear(4, 2)
        with torch.no_grad():
            head.weight.copy_(torch.linspace(-1, 1, 8).view(2, 4))
            head.bias.fill_(0.3)
        set_head_precision(head, precision)
        expected = torch.bfloat16 if precision == "paper" else torch.float32
        assert {parameter.dtype for parameter in head.parameters()} == {expected}
        outputs[precision] = head(states)
        assert outputs[precision].dtype == torch.float32
    assert torch.equal(outputs["fp32"], outputs["bf16"])
    assert 0 < float((outputs["fp32"] - outputs["paper"]).detach().abs().max()) < 0.05


@pytest.mark.parametrize("scale", [1e-3, 10.0])
def test_clipping(scale):
    _, weights = model_of("fp32")
    optimizer = Optimizer(weights, SETTINGS)
    norm = step(optimizer, weights, 1e-3, scale=scale)
    generator = torch.Generator().manual_seed(0)
    raw = {
        name: torch.randn(p.shape, generator=generator) * scale
        for name, p in weights.working.items()
    }
    expected = torch.cat([gradient.flatten() for gradient in raw.values()]).norm()
    assert norm == pytest.approx(float(expected), rel=1e-5)  # before clipping
    factor = min(1.0, 1.0 / norm)
    for name, gradient in raw.items():
        first_moment = optimizer.state_tensors()[f"{name}.exp_avg"]
        torch.testing.assert_close(first_moment, 0.1 * factor * gradient, rtol=1e-4, atol=1e-9)


@every_optimizer
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "paper"])
def test_non_finite_gradient_changes_nothing(poison, precision, settings):
    model, weights = model_of(precision)
    optimizer = optimizer_of(model, weights, settings)
    step(optimizer, weights, 1e-3)
    kept = everything(weights, optimizer)
    for parameter in weights.working.values():
        parameter.grad = torch.zeros_like(parameter)
    for name in ("lm_head.weight", "model.layers.0.mlp.up_proj.weight"):
        weights.working[name].grad[0, 0] = poison
    weights.gather_gradients()
    with pytest.raises(TrainingError, match="the gradient is not finite"):
        optimizer.step(1e-3)
    assert_equal(everything(weights, optimizer), kept)


@every_optimizer
@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_nothing_changes_after_a_loss_that_is_not_finite(loss, settings):
    """Nobody has read the loss yet when the next updates run; their own are finite."""
    model, weights = model_of("bf16")
    optimizer = optimizer_of(model, weights, settings)
    step(optimizer, weights, 1e-3)
    kept = everything(weights, optimizer)
    for value in (loss, 2.5, 2.5):
        for parameter in weights.working.values():
            parameter.grad = torch.ones_like(parameter)
        weights.gather_gradients()
        assert optimizer.update(1e-3, loss=torch.tensor(value)).isfinite()
    assert_equal(everything(weights, optimizer), kept)


@every_optimizer
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_moments_survive_a_round_trip_bitwise(precision, settings):
    model, weights = model_of(precision)
    optimizer = optimizer_of(model, weights, settings)
    for _ in range(2):
        step(optimizer, weights, 1e-3)
    moments, masters = copies(optimizer.state_tensors()), copies(weights.masters)
    assert {key.rsplit(".", 1)[1] for key in moments} == MOMENTS[settings.name]

    other, other_weights = model_of("fp32")
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            parameter.copy_(masters[name])
    other_weights = set_precision(other, precision)
    resumed = optimizer_of(other, other_weights, settings)
    resumed.load_state_tensors(copies(moments))
    step(optimizer, weights, 3e-3)
    step(resumed, other_weights, 3e-3)
    assert_equal(weights.masters, other_weights.masters)


@every_optimizer
@pytest.mark.parametrize("precision", ["fp32", "bf16", "paper"])
def test_weights_that_nothing_depends_on_stay_as_they_are(precision, settings):
    """Such as a pooler that no head reads: no decay, no moments."""
    model, weights = model_of(precision)
    optimizer = optimizer_of(model, weights, settings)
    idle = "model.layers.0.mlp.up_proj.weight"
    before = copies(weights.masters)
    for name, parameter in model.named_parameters():
        parameter.grad = None if name == idle else torch.ones_like(parameter)
    weights.gather_gradients()
    optimizer.step(1e-1)
    assert torch.equal(weights.masters[idle], before[idle])
    assert not any(name.startswith(idle) for name in optimizer.state_tensors())
    assert not torch.equal(weights.masters["lm_head.weight"], before["lm_head.weight"])


def test_moments_go_where_their_weights_are():
    """A state is read on the CPU, whatever it goes on with."""
    weight = nn.Parameter(torch.empty(3, device="meta"))
    optimizer = Optimizer(MasterWeights({"weight": weight}, {"weight": weight}), SETTINGS)
    moments = {"step": torch.tensor(2.0), "exp_avg": torch.ones(3), "exp_avg_sq": torch.ones(3)}
    optimizer.load_state_tensors({f"weight.{name}": value for name, value in moments.items()})
    found = optimizer.state_tensors()
    assert found.keys() == {f"weight.{name}" for name in moments}
    assert {value.device.type for value in found.values()} == {"meta"}


NAMES = ["model.embed_tokens.weight", "model.layers.0.mlp.weight", "model.layers.1.mlp.weight"]


def test_patterns_choose_names():
    assert frozen_names(NAMES, []) == set()
    assert frozen_names(NAMES, ["model.layers.0.*"]) == {NAMES[1]}
    assert frozen_names(NAMES, ["*mlp*"]) == set(NAMES[1:])
    assert frozen_names(NAMES, ["*embed*", "model.layers.[1]*"]) == {NAMES[0], NAMES[2]}


def test_a_pattern_that_fits_nothing_is_refused():
    with pytest.raises(ConfigError, match="no parameter's name matches"):
        frozen_names(NAMES, ["*embed*", "model.layer.0.*"])


def test_freezing_everything_is_refused():
    with pytest.raises(ConfigError, match="nothing would train"):
        frozen_names(NAMES, ["*"])


def test_freezing_is_undone_by_the_next_phase():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    freeze(model, ["0.*"])
    assert [p.requires_grad for p in model.parameters()] == [False, False, True, True]
    freeze(model, ["1.bias"])
    assert [p.requires_grad for p in model.parameters()] == [True, True, True, False]
