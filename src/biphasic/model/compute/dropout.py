"""Dropout: none in pretraining, and on a CPU from 16 random bits per element.

Pretraining uses no dropout, as in the study (arXiv 2507.00994, Appendix A), so a run depends on its
seeds alone; a model's configuration keeps the probabilities for fine-tuning.

torch draws 64 bits per element and converts them to a fraction one by one: a tenth of MiniLM's
fine-tuning time. Here probabilities are rounded to multiples of 2**-16, and kept elements are
scaled by the rounded probability, so expectations are exact.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

_RANGE = 1 << 16  # of the random numbers, which start at minus half of it


def switch_off_dropout(model: nn.Module) -> None:
    """Disable a model's dropout and noise in training mode, without changing its configuration."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            # Of attention weights, whole layers (OPT), and inputs of routers (Mixtral).
            if ("drop" in name or name == "jitter_noise") and isinstance(value, float):
                setattr(module, name, 0.0)


def speed_up_dropout(model: nn.Module) -> None:
    """Make a model's dropout layers use this implementation."""
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = _CpuDropout


def dropout(input: Tensor, chance: float) -> Tensor:
    """Return a tensor with elements dropped at random and the others scaled up."""
    # It uses torch's global generator; `chance` is the probability of dropping an element.
    dropped = round(chance * _RANGE)
    if input.device.type != "cpu" or not 0 < dropped < _RANGE:
        return functional.dropout(input, chance)
    size = input.numel()
    # Each 64-bit number gives four.
    bits = torch.empty(-(-size // 4), dtype=torch.int64).random_(-(1 << 63), None)
    is_kept = bits.view(torch.int16)[:size].view(input.shape) >= dropped - _RANGE // 2
    return input * is_kept.to(input.dtype).mul_(_RANGE / (_RANGE - dropped))


class _CpuDropout(nn.Dropout):
    """`nn.Dropout`, but never in place."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p) if self.training and self.p else input
