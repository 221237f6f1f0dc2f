"""Whether passes on a CPU use biphasic's own kernels, which round differently from torch's.

Training does, with `compute.cpu_kernels`. Held-out losses and fine-tuning use torch's kernels, so
that their results do not depend on the setting.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_ARE_ON = ContextVar("cpu_kernels", default=False)


@contextmanager
def cpu_kernels(are_on: bool) -> Iterator[None]:
    """Use our kernels in forward and backward passes on a CPU, or torch's."""
    token = _ARE_ON.set(are_on)
    try:
        yield
    finally:
        _ARE_ON.reset(token)


def uses_cpu_kernels(states: Tensor) -> bool:
    """Return whether our kernels compute these states."""
    # torch.compile makes kernels of its own.
    return not torch.compiler.is_compiling() and states.device.type == "cpu" and _ARE_ON.get()
