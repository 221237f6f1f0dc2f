"""Where models compute: the first CUDA device that the process may use, if there is one.

`CUDA_VISIBLE_DEVICES` chooses among them, and hides all when it is empty. `computing_on` chooses
for a block of code; processes that are started within it are told by `device_environment`. torch is
imported when a device is asked for: commands that only pass the choice on need none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

from biphasic.errors import ConfigError

if TYPE_CHECKING:
    import torch

ModelT = TypeVar("ModelT", bound="torch.nn.Module")
_chosen: ContextVar[torch.device | None] = ContextVar("chosen_device", default=None)


def parse_device(text: str | None) -> torch.device | None:
    """Return the device that people mean by `cpu`, `cuda` or `cuda:N`; None where they said none.

    Raises:
        ConfigError: It is none of these, or there is no such device here.
    """
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
    """Let models compute on a device within the block; None leaves the choice as it is."""
    token = _chosen.set(device or _chosen.get())
    try:
        with _current(device):
            yield
    finally:
        _chosen.reset(token)


def _current(device: torch.device | None) -> AbstractContextManager[object]:
    if device is None or device.index is None:
        return nullcontext()
    import torch  # noqa: PLC0415

    return torch.cuda.device(device)


def chosen_device() -> torch.device | None:
    """Return the device that was chosen; None where it is up to the machine."""
    return _chosen.get()


def compute_device() -> torch.device:
    """Return where models compute."""
    import torch  # noqa: PLC0415

    return _chosen.get() or torch.device("cuda" if torch.cuda.is_available() else "cpu")


def visible_devices() -> list[str]:
    """Return the GPUs that models may compute on, as `CUDA_VISIBLE_DEVICES` names them."""
    import torch  # noqa: PLC0415

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
    from torch import nn  # noqa: PLC0415

    # Called this way because transformers hides the signature.
    nn.Module.to(model, compute_device())
    return model
