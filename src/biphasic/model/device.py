"""Where models compute: the first CUDA device that the process may use, if there is one.

`CUDA_VISIBLE_DEVICES` chooses among them, and hides all when it is empty. `computing_on` chooses
for a block of code; processes that are started within it are told by `device_environment`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TypeVar

import torch
from torch import nn

from biphasic.errors import ConfigError

ModelT = TypeVar("ModelT", bound=nn.Module)
_chosen: ContextVar[torch.device | None] = ContextVar("chosen_device", default=None)


def parse_device(text: str | None) -> torch.device | None:
    """Return the device that people mean by `cpu`, `cuda` or `cuda:N`; None where they said none.

    Raises:
        ConfigError: It is none of these, or there is no such device here.
    """
    if text is None:
        return None
    if text == "cpu":
        return torch.device(text)
    named = re.fullmatch(r"cuda(?::([0-9]{1,4}))?", text)
    if named is None:
        raise ConfigError(f"device: unknown value {text[:80]!r}; write cpu, cuda or cuda:N")
    there = torch.cuda.device_count()
    if there <= int(named[1] or 0):
        shown = f"{there} CUDA devices, counted from 0" if there else "no CUDA device"
        raise ConfigError(f"device: {text}: torch sees {shown} here")
    return torch.device(text)


@contextmanager
def computing_on(device: torch.device | None) -> Iterator[None]:
    """Let models compute on a device within the block; None leaves the choice as it is."""
    token = _chosen.set(device or _chosen.get())
    has_index = device is not None and device.index is not None
    try:
        with torch.cuda.device(device) if has_index else nullcontext():
            yield
    finally:
        _chosen.reset(token)


def chosen_device() -> torch.device | None:
    """Return the device that was chosen; None where it is up to the machine."""
    return _chosen.get()


def compute_device() -> torch.device:
    """Return where models compute."""
    return _chosen.get() or torch.device("cuda" if torch.cuda.is_available() else "cpu")


def visible_devices() -> list[str]:
    """Return the GPUs that models may compute on, as `CUDA_VISIBLE_DEVICES` names them."""
    chosen, count = _chosen.get(), torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(index) for index in range(count)] if named is None else named.split(",")[:count]
    if chosen is None or chosen == torch.device("cuda"):
        return names
    return [] if chosen.type == "cpu" else [names[chosen.index]]


def device_environment() -> dict[str, str]:
    """Return the environment variables that tell a new process what was chosen here."""
    return {} if _chosen.get() is None else {"CUDA_VISIBLE_DEVICES": ",".join(visible_devices())}


def on_compute_device(model: ModelT) -> ModelT:
    """Move a model to where models compute."""
    # Called this way because transformers hides the signature.
    nn.Module.to(model, compute_device())
    return model
