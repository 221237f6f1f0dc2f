"""The compute device: the first CUDA device that the process may use, if there is one.

`CUDA_VISIBLE_DEVICES` selects devices, and hides all when it is empty. `computing_on` selects a
device for a block of code; `device_environment` passes the selection to child processes. torch is
imported only when a device is needed: commands that only pass the choice on do not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

from biphasic.errors import ConfigError

if TYPE_CHECKING:
    import torch

ModelT = TypeVar("ModelT", bound="torch.nn.Module")
_chosen: ContextVar[torch.device | None] = ContextVar("chosen_device", default=None)


def parse_device(text: str | None) -> torch.device | None:
    """Parse `cpu`, `cuda` or `cuda:N`; return None for None."""
    if text is None:
        return None
    import torch  # noqa: PLC0415

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
    """Set the compute device within the block; None leaves the choice unchanged."""
    token = _chosen.set(device or _chosen.get())
    try:
        if device is None or device.index is None:
            yield
            return
        import torch  # noqa: PLC0415

        with torch.cuda.device(device):
            yield
    finally:
        _chosen.reset(token)


@contextmanager
def compute_threads(number: int | None) -> Iterator[None]:
    """Set the number of compute threads within the block; None leaves it unchanged."""
    if number is None:
        yield
        return
    import torch  # noqa: PLC0415

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def chosen_device() -> torch.device | None:
    """Return the chosen device; None if it depends on the machine."""
    return _chosen.get()


def compute_device() -> torch.device:
    """Return the compute device."""
    import torch  # noqa: PLC0415

    return _chosen.get() or torch.device("cuda" if torch.cuda.is_available() else "cpu")


def visible_devices() -> list[str]:
    """Return the GPUs that models may use, as named in `CUDA_VISIBLE_DEVICES`."""
    import torch  # noqa: PLC0415

    chosen, count = _chosen.get(), torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    # Child processes get these names, not our numbers, which count within the variable. CUDA
    # ignores all names from the first invalid one on, so `count` may be smaller.
    names = [str(index) for index in range(count)] if named is None else named.split(",")[:count]
    if chosen is None or chosen == torch.device("cuda"):
        return names
    return [] if chosen.type == "cpu" else [names[chosen.index]]


def device_environment() -> dict[str, str]:
    """Return the environment variables that pass the chosen device to a child process."""
    return {} if _chosen.get() is None else {"CUDA_VISIBLE_DEVICES": ",".join(visible_devices())}


def on_compute_device(model: ModelT) -> ModelT:
    """Move a model to the compute device."""
    from torch import nn  # noqa: PLC0415

    # Called this way because transformers hides the signature.
    nn.Module.to(model, compute_device())
    return model
