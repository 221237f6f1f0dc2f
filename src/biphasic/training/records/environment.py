"""Versions and hardware, recorded with every result."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from typing import Any

from biphasic.model.compute.device import compute_device
from biphasic.numerics import is_other_code, running_code
from biphasic.records import StateRecord
from biphasic.training.lineage import NUMERICS_VERSION
from biphasic.version import __version__

_NUMERIC = (
    "numerics_version",
    "torch",
    "transformers",
    "instruction_set",
    "threads",
    "products",
    "device",
    "accelerator",
    "processes",
    "max_tokens_per_pass",
    "compile",
    "predicted_only",
    "cpu_kernels",
    "shard",
    "shard_size",
)  # settings of a state's `environment` and `compute` that can change numbers, by rounding
_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "scikit-learn", "scipy")


def environment() -> dict[str, Any]:
    """Return versions, hardware and thread count as JSON, without names of hosts or people."""
    import torch  # noqa: PLC0415 - commands that only read studies need no environment

    from biphasic.model.cpu.products import processor, products  # noqa: PLC0415 - torch

    device = compute_device()
    return {
        "biphasic": __version__,
        "numerics_version": NUMERICS_VERSION,
        "python": platform.python_version(),
        "libraries": _library_versions(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "products": str(products()),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "accelerator": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
    }


def changed_settings(before: StateRecord, compute: Mapping[str, Any]) -> str:
    """Describe what differs from an earlier record and can change numbers, as `threads 1 -> 4`."""
    # Settings that an old record lacks are left out.
    earlier = _settings(before.environment, before.compute)
    now = _settings(environment(), compute)
    changes = [
        f"{name} {earlier[name]} -> {now[name]}"
        for name in now
        if name in earlier and earlier[name] != now[name]
    ]
    if is_other_code("pretraining", before.code):
        code = before.code[-1] if before.code else "unknown"
        changes.append(f"code {code[:12]} -> {running_code('pretraining')[:12]}")
    return ", ".join(changes)


def _settings(environment: Mapping[str, Any], compute: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that can change numbers, by readable name."""
    all_settings = {**environment, **environment.get("libraries", {}), **compute}
    settings = {
        name.replace("_", " "): "none" if (value := all_settings[name]) is None else str(value)
        for name in _NUMERIC
        if name in all_settings
    }
    if "device" in settings:  # cuda:1 computes as cuda:0 does
        settings["device"] = settings["device"].partition(":")[0]
    return settings


@cache  # called at every checkpoint, and reading package metadata is slow
def _library_versions() -> dict[str, str]:
    return {name: version(name) for name in _LIBRARIES}
