"""Where models compute."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

ModelT = TypeVar("ModelT", bound=nn.Module)


def on_compute_device(model: ModelT) -> ModelT:
    """Move a model to the first CUDA device that the process may use, if there is one.

    `CUDA_VISIBLE_DEVICES` chooses, and hides all when it is empty.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    nn.Module.to(model, device)  # called this way because transformers hides the signature
    return model
