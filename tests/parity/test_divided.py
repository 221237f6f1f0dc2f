"""Every family computes the same losses and gradients with divided weights.

A group of one process divides nothing, but gathers and sums as any other does.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.distributed as dist

from biphasic.data.packing import pack_sequences
from biphasic.model.cpu import kernels
from biphasic.model.cpu.kernels import cpu_kernels
from biphasic.model.loading.build import new_model
from biphasic.objectives.supervision import Supervision
from biphasic.training.compute import ComputeConfig
from biphasic.training.optimizers.adamw import AdamW
from biphasic.training.optimizers.muon import Muon
from biphasic.training.step.divided import DividedWeights, divide
from biphasic.training.step.input import Pass, pass_loss
from biphasic.training.step.optimizer import Optimizer, layer_matrices, set_precision
from families import DISTINCT, tiny_config

FULL = ComputeConfig(processes=2, shard="full")


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    # torch keeps the group in a cache of this thread, and a fork from another thread that deletes
    # the cache would wait for the group's threads.
    torch._C._clear_DTensor_sharding_propagator_cache()
    dist.destroy_process_group()
    gc.collect()  # ends the group's threads, which a fork would not have


def rows(row_length: int = 16) -> Pass:
    tokens = [np.arange(3, row_length + 1) % 50, np.arange(20, 30)]
    packed = pack_sequences(tokens, row_length=row_length, pad_id=0)
    positions = np.arange(2, 14)
    labels = packed.input_ids.reshape(-1)[positions]
    return Pass.of(Supervision(packed, positions, labels, causal=False), first_position=2)


# Muon leaves embeddings, norms and heads to AdamW, so it shows both; the others need a family with
# an untied head, two with tied ones, and one with layers of two kinds.
@pytest.mark.parametrize(
    ("family", "precision", "optimizer"),
    [
        *((family, "bf16", "muon") for family in DISTINCT),
        *(
            (family, precision, "adamw")
            for precision in ("fp32", "bf16")
            for family in ("llama", "gemma2", "bert", "modernbert")
        ),
    ],
)
def test_losses_gradients_and_updates_are_those_of_whole_weights(family, precision, optimizer):
    settings = Muon(name="muon") if optimizer == "muon" else AdamW()
    whole, model = (new_model(tiny_config(family), init_seed=0) for _ in range(2))
    weights = set_precision(whole, precision)
    divided = divide(model, set_precision(model, precision), FULL)
    parts = DividedWeights(divided)
    assert parts.masters.keys() == weights.masters.keys()
    losses = [pass_loss(whole, rows()), divided(rows())]
    assert torch.equal(*losses)
    for own, loss in zip((weights, parts), losses, strict=True):
        loss.backward()
        own.gather_gradients()
    matrices = layer_matrices(whole)
    assert layer_matrices(model) == matrices
    optimizers = [Optimizer(own, settings, layer_matrices=matrices) for own in (weights, parts)]
    norms = [optimizer.update(1e-3) for optimizer in optimizers]
    torch.testing.assert_close(norms[0], norms[1], rtol=1e-6, atol=0)
    for name, master in weights.masters.items():
        torch.testing.assert_close(parts.masters[name], master.detach(), rtol=1e-5, atol=1e-7)


def test_cpu_kernels_compute_with_divided_weights(monkeypatch):
    read = []
    original = kernels._blocks
    monkeypatch.setattr(kernels, "_blocks", lambda *a, **b: read.append(1) or original(*a, **b))
    whole, model = (new_model(tiny_config("eurobert"), init_seed=0) for _ in range(2))
    weights = set_precision(whole, "fp32")
    divided = divide(model, set_precision(model, "fp32"), FULL)
    parts = DividedWeights(divided)
    expected = pass_loss(whole, rows(100))
    with cpu_kernels(True):
        losses = [pass_loss(whole, rows(100)), divided(rows(100))]
        assert torch.equal(*losses)
        assert len(read) == 2 * whole.config.num_hidden_layers
        for own, loss in zip((weights, parts), losses, strict=True):
            loss.backward()
            own.gather_gradients()
    torch.testing.assert_close(losses[0], expected)
    optimizers = [
        Optimizer(own, AdamW(), layer_matrices=layer_matrices(whole)) for own in (weights, parts)
    ]
    norms = [optimizer.update(1e-3) for optimizer in optimizers]
    torch.testing.assert_close(norms[0], norms[1], rtol=1e-6, atol=0)
