"""Muon: which weights it moves, and where to."""

import pytest
import torch
from torch import nn
from torch.optim import AdamW as TorchAdamW
from torch.optim import Muon as TorchMuon
from transformers import AutoConfig, AutoModel

from biphasic.config import parse_config
from biphasic.errors import ConfigError
from biphasic.model.cpu import products
from biphasic.model.cpu.products import Products
from biphasic.model.loading.build import architecture_config, new_model
from biphasic.model.loading.hub import fetch_model
from biphasic.model.shape import PRESETS
from biphasic.training.lineage import DataFingerprint, Lineage
from biphasic.training.optimizers.muon import Muon
from biphasic.training.optimizers.orthogonal import orthogonal_factors
from biphasic.training.recipe import Recipe
from biphasic.training.step.optimizer import Optimizer, layer_matrices, set_precision
from biphasic.training.step.weights import MasterWeights
from families import FAMILIES, SHARED, save_family, tiny_config

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
    monkeypatch.setattr(products, "products", lambda: chosen)
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


# Queries, keys and values, then the two inputs of an MLP; rows of small models, head by head.
FUSED = {
    "modernbert": {"Wqkv": [32, 32, 32], "Wi": [48, 48]},
    "modernbert-decoder": {"Wi": [48, 48]},
    "phi3": {"qkv_proj": [32, 16, 16], "gate_up_proj": [48, 48]},
    "gpt_neox": {"query_key_value": [8, 8, 8]},
    "persimmon": {"query_key_value": [8, 8, 8]},
    "glm": {"gate_up_proj": [48, 48]},
    "glm4": {"gate_up_proj": [48, 48]},
    "gpt2": {"c_attn": [32, 32, 32]},
    "gpt_bigcode": {"c_attn": [32, 8, 8]},
}


# transformers 5.17 scripts functions of GPT-BigCode.
OLDER_BIGCODE = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")


def fused_config(family: str):
    if family in FAMILIES:
        return tiny_config(family)
    settings = {**SHARED, "num_key_value_heads": 2, "head_dim": 8}
    if family not in ("glm", "glm4"):
        del settings["num_key_value_heads"], settings["head_dim"]
    return AutoConfig.for_model(family, **settings)


def indices(sizes: list[int], length: int) -> list[torch.Tensor]:
    """The rows of each matrix."""
    rows = torch.arange(length).reshape(-1, sum(sizes))
    return [part.flatten() for part in rows.split(sizes, dim=1)]


@OLDER_BIGCODE
@pytest.mark.parametrize("family", FUSED)
def test_each_matrix_of_a_fused_weight_is_orthogonalized_alone(family):
    model = new_model(fused_config(family), init_seed=0)
    weights = set_precision(model, "fp32")
    settings = Muon(name="muon", weight_decay=0.0, max_gradient_norm=None)
    optimizer = Optimizer(weights, settings, layer_matrices=layer_matrices(model))
    before = {name: value.detach().clone() for name, value in weights.masters.items()}
    gradients = {name: noise(value.shape, 7) for name, value in weights.masters.items()}
    for name, master in weights.masters.items():
        master.grad = gradients[name].clone()
    optimizer.step(1e-2)
    expected = {
        f"{name}.weight": sizes
        for name, module in model.named_modules()
        if (sizes := FUSED[family].get(name.rpartition(".")[2])) and hasattr(module, "weight")
    }
    assert weights.fused == {name: tuple(sizes) for name, sizes in expected.items()}
    assert len(expected) == len(FUSED[family]) * model.config.num_hidden_layers
    for name, sizes in expected.items():
        step, gradient = before[name] - weights.masters[name].detach(), gradients[name]
        if family == "gpt2":
            step, gradient = step.mT, gradient.mT
        for rows in indices(sizes, len(step)):
            alone = orthogonal_factors(gradient[rows][None])[0]
            scale = 1e-2 * 0.2 * max(alone.shape) ** 0.5
            torch.testing.assert_close(step[rows], scale * alone, rtol=0, atol=1e-5)


@OLDER_BIGCODE
@pytest.mark.parametrize("family", FUSED)
@torch.no_grad()
def test_fused_weights_hold_what_their_layout_says(family):
    """Without keys or without one half of an MLP, the weights that they multiply do not matter."""
    for module, sizes in FUSED[family].items():
        for changed, decides in [(0, 1), (1, 0)]:
            moved = []
            for silent in (decides, None):
                torch.manual_seed(0)
                model = AutoModel.from_config(fused_config(family)).eval()
                parts = [
                    (layer.weight.mT if family == "gpt2" else layer.weight, layer.bias)
                    for name, layer in model.named_modules()
                    if name.rpartition(".")[2] == module
                ]
                states = []
                for _ in range(2):
                    rows = indices(sizes, len(parts[0][0]))
                    for weight, bias in parts:
                        if silent is not None:
                            weight[rows[silent]] = 0.0
                            if bias is not None:
                                bias[rows[silent]] = 0.0
                    states.append(model(torch.arange(5, 15)[None]).last_hidden_state)
                    for weight, _ in parts:
                        weight[rows[changed]] += 0.5 * noise(weight[rows[changed]].shape, 3)
                moved.append(not torch.equal(*states))
            assert moved == [False, True], (module, changed)


def test_fused_families_have_states_of_their_own():
    """Other families, and other optimizers, keep theirs."""
    chains = {}
    for fused in (False, True):
        ground = DataFingerprint("c" * 64, "t" * 64, 320, pretrained="p" * 64, fused=fused)
        for name in ("muon", "adamw"):
            raw = {
                "model": {"pretrained": "somewhere"},
                "phases": [{"objective": "clm", "steps": 2}],
                "learning_rate": {"peak": 1e-3},
                "optimizer": {"name": name},
            }
            recipe = parse_config(Recipe, raw, where="test")
            chains[name, fused] = Lineage(recipe, ground).identities
    assert chains["adamw", True] == chains["adamw", False]
    assert chains["muon", True][0] == chains["muon", False][0]
    assert chains["muon", True][1] != chains["muon", False][1]


@pytest.mark.parametrize("family", ["modernbert", "qwen3"])
def test_a_folder_says_whether_its_family_is_fused(family, tmp_path):
    save_family(family, tmp_path / family)
    assert fetch_model(tmp_path / family).is_fused == (family in FUSED)
