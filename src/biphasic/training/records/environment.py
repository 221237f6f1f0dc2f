"""Versions and hardware, recorded with every result."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from biphasic.model.compute.device import compute_device
from biphasic.training.lineage import NUMERICS_VERSION
from biphasic.version import __version__

_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "scikit-learn", "scipy")


def environment() -> dict[str, Any]:
    """Return versions, hardware and thread count as JSON, without names of hosts or people."""
    import torch  # noqa: PLC0415 - commands that only read studies need no environment

    device = compute_device()
    return {
        "biphasic": __version__,
        "numerics_version": NUMERICS_VERSION,
        "python": platform.python_version(),
        "libraries": _library_versions(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "accelerator": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
    }


@cache  # called at every checkpoint, and reading package metadata is slow
def _library_versions() -> dict[str, str]:
    return {name: version(name) for name in _LIBRARIES}


@cache
def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
