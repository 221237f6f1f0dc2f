"""Updates of matrices by their orthogonalized momentum, as `torch.optim.Muon` makes them.

It differs in five ways: a weight that holds several matrices (`fused_rows`) is updated matrix by
matrix; found_inf skips an update without waiting for the device; matrices may be
divided over processes; several of one shape are computed at once where that is faster; and a CPU
computes in fp32, by the library that is fastest on it. On a Xeon with bf16 instructions (AVX-512,
no AMX), fp32 took 53 ms of one core for the matrices of `nano` and bf16 121 ms; without such
instructions bf16 is far slower.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from biphasic.model.cpu.products import product

if TYPE_CHECKING:  # it builds optimizers
    from biphasic.training.step.weights import MasterWeights

# Of Muon's authors and of `torch.optim.Muon`, as are the five iterations. They move small singular
# values up fast, at the cost of ending between 0.7 and 1.2, not at 1.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_NUM_ITERATIONS = 5
_LEAST_NORM = 1e-7
# The size of AdamW's steps, so that both parts of a model share rate and decay ("Muon is scalable
# for LLM training", arXiv:2502.16982; `match_rms_adamw` in torch).
_ADAMW_RMS = 0.2
_MOST_NUMBERS = 1 << 25  # numbers of the matrices that a GPU orthogonalizes at once


class OrthogonalSteps(torch.optim.Optimizer):
    """Moves matrices by their orthogonalized Nesterov momentum."""

    found_inf: Tensor
    """1: the update changes nothing; a scalar on the device."""

    def __init__(
        self,
        weights: MasterWeights,
        names: Collection[str],
        *,
        momentum: float,
        weight_decay: float,
    ) -> None:
        """Take the matrices `names` of some weights; those of one shape are a group."""
        groups: dict[tuple[torch.Size, tuple[int, ...]], list[tuple[str, Tensor]]] = {}
        for name, master in weights.masters.items():
            if name in names:
                key = (weights.working[name].shape, weights.fused.get(name, ()))
                groups.setdefault(key, []).append((name, master))
        super().__init__(
            [{"params": group, "shape": key[0], "rows": key[1]} for key, group in groups.items()],
            {"lr": 0.0, "momentum": momentum, "weight_decay": weight_decay},
        )
        self._weights = weights

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the matrices that have a gradient."""
        del closure
        for group in self.param_groups:
            named = zip(group["param_names"], group["params"], strict=True)
            trained = [(name, matrix) for name, matrix in named if matrix.grad is not None]
            size = self._num_at_once(group["shape"])
            for first in range(0, len(trained), size):
                self._move(dict(trained[first : first + size]), group)

    def _num_at_once(self, shape: torch.Size) -> int:
        """Return how many matrices to hold at once: enough for all processes, but no more."""
        # A GPU is idle between small products; stacked ones keep it busy, within `_MOST_NUMBERS`.
        is_cpu = self.found_inf.device.type == "cpu"  # one by one is as fast there, and smaller
        each = 1 if is_cpu else max(1, _MOST_NUMBERS // shape.numel())
        return each * self._weights.num_processes

    def _move(self, matrices: dict[str, Tensor], group: dict[str, Any]) -> None:
        directions = {name: self._direction(m, group["momentum"]) for name, m in matrices.items()}
        self._weights.on_whole(partial(orthogonalize_, rows=group["rows"]), directions)
        rate, applied = group["lr"], 1 - self.found_inf
        for name, matrix in matrices.items():
            matrix.mul_(1 - rate * group["weight_decay"] * applied)
            matrix.addcmul_(directions[name], applied, value=-rate)

    def _direction(self, matrix: Tensor, momentum: float) -> Tensor:
        """Update the momentum of a matrix, and return Nesterov's look ahead."""
        # Zero times a number that is not finite would not be zero.
        gradient = cast(Tensor, matrix.grad).masked_fill_(self.found_inf > 0, 0.0)
        state = self.state[matrix]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        average = state["momentum_buffer"]
        average.lerp_(gradient, (1 - momentum) * (1 - self.found_inf))
        return gradient.lerp_(average, momentum)


def orthogonalize_(matrices: list[Tensor], *, rows: tuple[int, ...] = ()) -> None:
    """Replace matrices of one shape by their orthogonal factors, of the scale of AdamW's steps.

    With `rows`, each holds several matrices of these rows, repeated head by head.
    """
    if not matrices:  # of this process
        return
    if rows:
        if matrices[0].shape[0] % sum(rows):  # GPT-2's weights are transposed
            matrices = [matrix.mT for matrix in matrices]
        parts = [matrix.unflatten(0, (-1, sum(rows))).split(rows, dim=1) for matrix in matrices]
        for blocks in zip(*parts, strict=True):  # (heads or 1, rows, columns)
            whole = [block.flatten(0, 1).clone() for block in blocks]
            orthogonalize_(whole)
            for block, factor in zip(blocks, whole, strict=True):
                block.copy_(factor.unflatten(0, block.shape[:2]))
        return
    dtype = torch.float32 if matrices[0].device.type == "cpu" else torch.bfloat16
    factors = orthogonal_factors(torch.stack(matrices).to(dtype))
    scale = _ADAMW_RMS * math.sqrt(max(matrices[0].shape))
    for matrix, factor in zip(matrices, factors, strict=True):
        torch.mul(factor, scale, out=matrix)


def orthogonal_factors(matrices: Tensor) -> Tensor:
    """Return U V^T for each U S V^T, with singular values of 0.7 to 1.2: [matrix, row, column]."""
    # Newton-Schulz iterations replace each singular value s by a s + b s^3 + c s^5.
    # Products of the shorter side with itself are the smaller ones.
    if matrices.shape[1] > matrices.shape[2]:
        return orthogonal_factors(matrices.mT).mT
    norms = matrices.norm(dim=(1, 2), keepdim=True)
    matrices = matrices / norms.clamp(min=_LEAST_NORM)  # no singular value is above 1
    _, rows, columns = matrices.shape
    if matrices.dtype == torch.float32 and columns >= 2 * rows:
        return _by_products(matrices)
    a, b, c = _COEFFICIENTS
    for _ in range(_NUM_ITERATIONS):
        products = _times(matrices, matrices)
        factors = _plus_product(b, products, c, products, products)
        matrices = _plus_product(a, matrices, 1.0, factors, matrices.mT)
    return matrices


def _by_products(matrices: Tensor) -> Tensor:
    """Do the same for long matrices, by iterations on their small products with themselves."""
    # It squares singular values, for which bf16 has too few bits.
    a, b, c = _COEFFICIENTS
    products = _times(matrices, matrices)
    factors = torch.empty(0)
    for iteration in range(_NUM_ITERATIONS):
        factor = _plus_product(b, products, c, products, products)
        factor.diagonal(dim1=1, dim2=2).add_(a)
        factors = _times(factor, factors) if iteration else factor
        if iteration < _NUM_ITERATIONS - 1:
            products = _times(_times(factor, products), factor)
    return _times(factors, matrices.mT)


def _plus_product(beta: float, added: Tensor, alpha: float, left: Tensor, right: Tensor) -> Tensor:
    """Return `beta * added + alpha * left @ right.mT`."""
    if left.device.type != "cpu":
        return torch.baddbmm(added, left, right.mT, beta=beta, alpha=alpha)
    return _times(left, right).mul_(alpha).add_(added, alpha=beta)


def _times(left: Tensor, right: Tensor) -> Tensor:
    """Return `left @ right.mT`; products of a matrix with itself and factors are symmetric."""
    if left.device.type != "cpu":
        return left @ right.mT
    products = [product(*pair) for pair in zip(left, right, strict=True)]
    return torch.stack(products) if len(products) > 1 else products[0][None]
