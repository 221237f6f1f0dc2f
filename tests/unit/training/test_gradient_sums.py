"""Gradients in buckets, with a second rank that always has the same ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from biphasic.distributed import ALONE
from biphasic.training.step import gradient_sums
from biphasic.training.step.gradient_sums import GradientSums
from biphasic.training.step.optimizer import MasterWeights


@dataclass
class Twins:
    """Stands for a process group of two whose ranks do the same."""

    is_alone: bool = False
    begun: list[int] = field(default_factory=list)

    def begin_sum(self, tensor: Tensor) -> Any:
        self.begun.append(tensor.numel())
        return SimpleNamespace(wait=lambda: tensor.mul_(2))

    def sum_(self, tensor: Tensor) -> None:
        tensor.mul_(2)


NAMES = ("first", "second", "never", "still")


def weights_of(precision: torch.dtype) -> MasterWeights:
    """Return four matrices, and masters of their own where they are in bf16."""
    torch.manual_seed(0)
    working = {name: nn.Parameter(torch.randn(4, 4, dtype=precision)) for name in NAMES}
    working["still"].requires_grad_(False)
    if precision == torch.float32:
        return MasterWeights(working, dict(working.items()))
    return MasterWeights(working, {name: each.data.float() for name, each in working.items()})


def train(weights: MasterWeights, ranks: Any, *, late: bool = True) -> dict[str, Tensor | None]:
    """Make the gradients of two passes, the second of which leaves out a matrix."""
    sums = GradientSums(weights, ranks)
    sums.lay_out()
    used = weights.working
    loss = torch.zeros(())
    for number, names in enumerate([("first", "second"), ("first",) if late else ()]):
        if number == 1:
            sums.begin()
        if names:
            value = sum((used[name].float() * (number + 1)).square().sum() for name in names)
            value.backward()  # type: ignore[union-attr]
            weights.gather_gradients()
            loss += value.detach()  # type: ignore[union-attr]
    alone = float(loss)
    sums.finish(loss)
    assert float(loss) == (alone if ranks is ALONE else 2 * alone)
    return {name: master.grad for name, master in weights.masters.items()}


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("bucket_bytes", [1, 100, 1 << 20])
def test_gradients_of_all_passes_are_summed_once(monkeypatch, precision, late, bucket_bytes):
    monkeypatch.setattr(gradient_sums, "BUCKET_BYTES", bucket_bytes)
    expected = train(weights_of(precision), ALONE, late=late)
    ranks, weights = Twins(), weights_of(precision)
    found = train(weights, ranks, late=late)
    for name in ("first", "second"):
        assert expected[name] is not None
        assert torch.equal(found[name], 2 * expected[name])
    # What no rank has a gradient for has none; what is frozen is not even exchanged.
    assert found["never"] is expected["never"] is None
    assert found["still"] is expected["still"] is None
    assert all(weights.working[name].grad is None for name in NAMES) or precision != torch.bfloat16
    numbers = [16, 16, 16] if bucket_bytes <= 100 else [48]
    assert ranks.begun == [*numbers, 1]  # and the loss


def test_every_step_starts_from_zero():
    ranks, weights = Twins(), weights_of(torch.float32)
    sums = GradientSums(weights, ranks)  # type: ignore[arg-type]
    sums.lay_out()
    for _ in range(2):
        sums.begin()
        weights.working["first"].square().sum().backward()
        sums.finish(torch.zeros(()))
        assert torch.equal(weights.masters["first"].grad, 4 * weights.working["first"].detach())
        for master in weights.masters.values():
            master.grad = None


def test_other_parameters_make_other_buckets():
    ranks, weights = Twins(), weights_of(torch.float32)
    sums = GradientSums(weights, ranks)  # type: ignore[arg-type]
    sums.lay_out()
    for name in NAMES:
        weights.working[name].requires_grad_(name == "still")
    sums.lay_out()
    sums.begin()
    weights.working["still"].sum().backward()
    sums.finish(torch.zeros(()))
    assert ranks.begun == [16, 1]
    assert torch.equal(weights.masters["still"].grad, torch.full((4, 4), 2.0))


def test_alone_nothing_is_hooked():
    weights = weights_of(torch.float32)
    sums = GradientSums(weights, ALONE)
    sums.lay_out()
    sums.begin()
    weights.working["first"].sum().backward()
    gradient = weights.working["first"].grad
    sums.finish(torch.zeros(()))
    assert weights.working["first"].grad is gradient
    assert weights.working["first"]._post_accumulate_grad_hooks is None
