"""Dropout: none in pretraining, and on a CPU from 16 random bits per element.

Pretraining drops nothing, as in the study (arXiv 2507.00994, Appendix A), so that a run follows
from its seeds alone; a model's configuration keeps the chances for fine-tuning.

torch draws 64 bits for each and turns them into a fraction, one element after another: a tenth of
the time that fine-tuning MiniLM takes. Chances are rounded to multiples of 2**-16, and what is kept
is scaled by the rounded chance, so expectations are exact.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

_RANGE = 1 << 16  # of the random numbers, which begin at minus half of it


def switch_off_dropout(model: nn.Module) -> None:
    """Let a model drop nothing in training mode either; its configuration stays as it is."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):  # of attention weights
                setattr(module, name, 0.0)


def speed_up_dropout(model: nn.Module) -> None:
    """Let a model's dropout layers compute this way."""
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = _CpuDropout


def dropout(input: Tensor, chance: float) -> Tensor:
    """Return a tensor with elements dropped at random, the others scaled up.

    Draws from torch's own generator; `chance` is that of an element to be dropped.
    """
    dropped = round(chance * _RANGE)
    if input.device.type != "cpu" or not 0 < dropped < _RANGE:
        return functional.dropout(input, chance)
    size = input.numel()
    # Each number of 64 bits makes four.
    bits = torch.empty(-(-size // 4), dtype=torch.int64).random_(-(1 << 63), None)
    is_kept = bits.view(torch.int16)[:size].view(input.shape) >= dropped - _RANGE // 2
    return input * is_kept.to(input.dtype).mul_(_RANGE / (_RANGE - dropped))


class _CpuDropout(nn.Dropout):
    """`nn.Dropout`, but not in place."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p) if self.training and self.p else input
