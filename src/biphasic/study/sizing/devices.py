"""Devices: peak speed and memory, from public data sheets.

Speed is of dense bf16 matrix products, without sparsity. Memory is in units of 1e9 bytes, as sold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from biphasic.config import nearest
from biphasic.errors import ConfigError

ASSUMED_MFU = 0.4


@dataclass(frozen=True)
class Device:
    """A compute device, as torch counts them."""

    name: str  # Value of `--device`.
    flops: float | None  # Peak FLOP/s; None if it must be given.
    memory: float | None  # Bytes; None if unknown.
    source: str  # Where the numbers are from.
    # Share of the peak that the model FLOPs of training reach; an assumption unless the source says
    # how it was measured.
    mfu: float = ASSUMED_MFU


DEVICES = {
    device.name: device
    for device in (
        Device("h100", 989.4e12, 80e9, "NVIDIA H100 Tensor Core GPU data sheet, SXM5"),
        Device("h200", 989.4e12, 141e9, "NVIDIA H200 Tensor Core GPU data sheet, SXM"),
        Device("a100-80gb", 312e12, 80e9, "NVIDIA A100 Tensor Core GPU data sheet, SXM4"),
        Device("a100-40gb", 312e12, 40e9, "NVIDIA A100 Tensor Core GPU data sheet, SXM4"),
        # A module has two, with 383 TFLOP/s and 128 GB in all. By the study's own hours
        # (arXiv 2507.00994, section 2), 81,000 for its base models, 16,000 for PFS and 4,000 for
        # CPT, a die reached 11.1, 10.7 and 17.1 % of its peak.
        Device(
            "mi250x",
            191.5e12,
            64e9,
            "AMD Instinct MI250X data sheet, one of two dies; 11 % of the peak by the hours of the "
            "base models of arXiv 2507.00994",
            mfu=0.11,
        ),
        Device("cpu", None, None, "the numbers given with it"),
    )
}


def choose_device(
    name: str | None, *, flops: float | None = None, memory: float | None = None
) -> Device:
    """Return a device of the table; given numbers replace its own."""
    given = {"flops": flops, "memory": memory}
    given = {field: value for field, value in given.items() if value is not None}
    for field, value in given.items():
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{field}: {value:g}; give a number above 0")
    if name is None and flops is not None:
        return Device("custom", flops, memory, "the numbers given with it")
    name = name or "h100"
    if name not in DEVICES:
        raise ConfigError(f"device: unknown value {name[:80]!r}{nearest(name, DEVICES)}")
    device = replace(DEVICES[name], **given)
    if given and DEVICES[name].flops is not None:
        changed = ", ".join(field.name for field in fields(device) if field.name in given)
        device = replace(device, source=f"{device.source}; {changed} as given")
    if device.flops is None:
        raise ConfigError(f"device: {name} has no speed of its own; give its FLOP/s with flops")
    return device
