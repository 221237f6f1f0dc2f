"""Muon: which weights it moves, and where to."""

import pytest
import torch
from torch import nn
from torch.optim import AdamW as TorchAdamW
from torch.optim import Muon as TorchMuon

from biphasic.errors import ConfigError
from biphasic.model.compute import linear
from biphasic.model.compute.products import Products
from biphasic.model.loading.build import architecture_config, new_model
from biphasic.model.presets import PRESETS
from biphasic.training.optimizers.muon import Muon
from biphasic.training.optimizers.orthogonal import orthogonal_factors
from biphasic.training.step.optimizer import (
    MasterWeights,
    Optimizer,
    layer_matrices,
    set_precision,
)
from families import FAMILIES, tiny_config

SETTINGS = Muon(name="muon")
IDS = {"bos": 0, "eos": 1, "pad": 2, "mask": 3}


def pico():
    config = architecture_config(PRESETS["pico"], vocab_size=40, max_seqlen=32, special_ids=IDS)
    return new_model(config, init_seed=0)


def noise(shape: torch.Size, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def torch_optimizers(model, settings: Muon) -> list[torch.optim.Optimizer]:
    """The same by torch alone."""
    matrices = layer_matrices(model)
    named = dict(model.named_parameters())
    others = [weight for name, weight in named.items() if name not in matrices]
    return [
        TorchMuon(
            [weight for name, weight in named.items() if name in matrices],
            weight_decay=settings.weight_decay,
            momentum=settings.momentum,
            adjust_lr_fn="match_rms_adamw",
        ),
        TorchAdamW(
            [
                {
                    "params": [p for p in others if p.ndim > 1],
                    "weight_decay": settings.weight_decay,
                },
                {"params": [p for p in others if p.ndim == 1], "weight_decay": 0.0},
            ],
            betas=(settings.beta1, settings.beta2),
            eps=settings.epsilon,
        ),
    ]


def largest_differences(*, num_steps: int, settings: Muon) -> dict[str, float]:
    """Return by how much weights differ from torch's, relative to their changes."""
    model, twin, start = pico(), pico(), pico()
    optimizer = Optimizer(
        set_precision(model, "fp32"), settings, layer_matrices=layer_matrices(model)
    )
    references = torch_optimizers(twin, settings)
    for step in range(num_steps):
        for seed, (own, other) in enumerate(
            zip(model.parameters(), twin.parameters(), strict=True)
        ):
            own.grad = noise(own.shape, 100 * step + seed)
            other.grad = own.grad.clone()
        optimizer.step(rate := 1e-2 / (step + 1))
        nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
        for reference in references:
            for group in reference.param_groups:
                group["lr"] = rate
            reference.step()
    names = dict(model.named_parameters())
    return {
        name: float(
            (names[name] - other).detach().abs().max()
            / (start.get_parameter(name) - other).detach().abs().max()
        )
        for name, other in twin.named_parameters()
    }


@pytest.mark.parametrize("library", ["mkl", "onednn"])
@pytest.mark.parametrize("settings", [SETTINGS, Muon(name="muon", momentum=0.5, weight_decay=0.3)])
def test_fp32_equals_torchs_muon_and_adamw(settings, library, monkeypatch):
    chosen = Products(library, library, library, widens_bf16=False)
    monkeypatch.setattr(linear, "products", lambda: chosen)
    # torch computes in bf16 always.
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda self: self.clone())
    differences = largest_differences(num_steps=4, settings=settings)
    assert max(differences.values()) < 1e-4, differences


def test_torchs_muon_in_bf16_differs_by_its_rounding():
    differences = largest_differences(num_steps=4, settings=SETTINGS)
    matrices = layer_matrices(pico())
    assert 1e-3 < max(differences[name] for name in matrices) < 0.1
    assert max(value for name, value in differences.items() if name not in matrices) < 1e-4


def test_matrices_of_layers_and_no_others_are_orthogonalized():
    model = pico()
    parts = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    parts += ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    expected = {f"model.layers.{n}.{part}.weight" for n in range(2) for part in parts}
    assert layer_matrices(model) == expected
    weights = set_precision(model, "fp32")
    steps, others = SETTINGS.build(weights, layer_matrices=expected)
    own = [id(p) for group in steps.param_groups for p in group["params"]]
    rest = [id(p) for group in others.param_groups for p in group["params"]]
    assert sorted(own) == sorted(id(weights.masters[name]) for name in expected)
    assert sorted(own + rest) == sorted(map(id, weights.masters.values()))
    model.model.layers[0].positions = nn.Embedding(4, 8)  # as models with relative positions have
    assert layer_matrices(model) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_and_head_of_every_family_have_adamw(family):
    model = new_model(tiny_config(family), init_seed=0)
    matrices = {id(model.get_parameter(name)) for name in layer_matrices(model)}
    assert matrices
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            assert id(module.weight) not in matrices
    assert id(model.get_output_embeddings().weight) not in matrices
    assert all(p.ndim == 2 for p in model.parameters() if id(p) in matrices)


def test_a_model_without_matrices_in_its_layers_is_refused():
    weight = nn.Parameter(torch.ones(2, 2))
    with pytest.raises(ConfigError, match="layers have no matrices; set name: adamw"):
        Optimizer(MasterWeights({"w": weight}, {"w": weight}), SETTINGS)


@pytest.mark.parametrize("shape", [(24, 24), (24, 40), (24, 60), (60, 24), (1, 9)])
def test_singular_values_become_about_one(shape):
    matrices = noise(torch.Size((3, *shape)), seed=0)
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    values = values.double() / values.double().norm(dim=1, keepdim=True)
    for _ in range(5):  # the constants of Jordan et al.
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    factors = orthogonal_factors(matrices)
    found = (left.mT @ factors @ right.mT).double()
    torch.testing.assert_close(found, torch.diag_embed(values), rtol=0, atol=1e-4)
    assert 0.6 < float(values.median()) <= float(values.max()) < 1.3
    for matrix, factor in zip(matrices, factors, strict=True):  # each is as it is alone
        alone = orthogonal_factors(matrix[None])[0]
        torch.testing.assert_close(factor, alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [(24, 24), (24, 60), (60, 24)])
def test_gradients_of_few_directions_stay_in_them(shape):
    rows, columns = shape
    matrix = noise(torch.Size((rows, 2)), seed=0) @ noise(torch.Size((2, columns)), seed=1)
    left, _, right = torch.linalg.svd(matrix)
    found = left.mT @ orthogonal_factors(matrix[None])[0] @ right.mT
    diagonal = found[:2, :2].diagonal()
    assert 0.6 < float(diagonal.min()) < float(diagonal.max()) < 1.3
    found[0, 0] = found[1, 1] = 0.0
    assert float(found.abs().max()) < 1e-2
    assert not orthogonal_factors(torch.zeros(1, rows, columns)).any()


@pytest.mark.parametrize("shape", [(16, 64), (64, 16), (32, 32)])
def test_a_step_has_the_size_of_adamws(shape):
    """0.2 times the rate, as Liu et al. measured AdamW's."""
    weights = {name: nn.Parameter(torch.zeros(shape)) for name in ("matrix", "head")}
    settings = Muon(name="muon", weight_decay=0.0)
    optimizer = Optimizer(MasterWeights(weights, weights), settings, layer_matrices=["matrix"])
    weights["matrix"].grad = noise(torch.Size(shape), seed=0)
    optimizer.step(1e-2)
    rms = float(weights["matrix"].detach().square().mean().sqrt())
    # A matrix of orthogonal unit vectors has a root mean square of 1 / sqrt(longer side).
    assert rms == pytest.approx(0.2 * 1e-2, rel=0.15)
