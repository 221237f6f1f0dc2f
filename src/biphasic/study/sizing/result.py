"""What an estimate says, as a record and as text.

Speed is of dense bf16 matrix products, without sparsity. Memory is in units of 1e9 bytes, as sold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from biphasic.amounts import amount, gigabytes, percent, two_digits
from biphasic.config import nearest
from biphasic.errors import ConfigError
from biphasic.shown import Shown
from biphasic.study.plan.cost import Parameters
from biphasic.study.sizing.memory import Memory

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


FORMAT = "biphasic.estimate/1"
_PARTS = {
    "weights": "weights of the passes",
    "masters": "fp32 weights",
    "moments": "moments of the optimizer",
    "gradients": "gradients",
    "activations": "activations",
    "head": "head's logits and gradients",
    "temporary": "layer in progress, libraries",
    "margin": "fragmentation (10 %)",
    "process": "process besides training",
    "total": "all",
}


@dataclass(frozen=True)
class ObjectiveEstimate:
    """One objective of a phase, on full rows of one document each."""

    objective: str
    supervised_share: float  # Share of the tokens that it predicts; the largest if it changes.
    flops_per_token: float  # Of forward and backward pass.


@dataclass(frozen=True)
class PhaseEstimate:
    """A phase."""

    steps: int
    max_seqlen: int
    rows_per_step: int
    rows_per_device: int  # Rows of a step that a device reads, at most.
    objectives: tuple[ObjectiveEstimate, ...]
    # Rows per pass on the device, in each of `WAYS`; empty if its memory is unknown.
    rows_that_fit: dict[str, int]


@dataclass(frozen=True)
class TimeEstimate:
    """Training on as many devices of one kind."""

    device: str
    mfu: float  # Share of the devices' peak that model FLOPs reach.
    tokens_per_second: float
    hours: float


@dataclass(frozen=True, repr=False)
class ResourceEstimate(Shown):
    """What a recipe needs."""

    model: str  # Name of the preset, or its dimensions.
    vocab_size: int
    precision: str
    devices: int  # Number of devices.
    device: Device
    mfu: float
    parameters: Parameters
    phases: tuple[PhaseEstimate, ...]
    tokens: int  # Nominal tokens of the run: rows times their length.
    flops: int  # Model FLOPs of the run.
    # Memory of a device at the peak of the largest step, if all its rows are one pass, in each of
    # `WAYS`; those that divide weights need two devices.
    memory: dict[str, Memory]
    # Suggested compute settings; None if the device is too small, or its memory unknown.
    compute: dict[str, Any] | None
    times: tuple[TimeEstimate, ...]  # For the device, and for the others of the table.

    def to_json(self) -> dict[str, Any]:
        """Return the estimate as a record."""
        memory = {way: {**asdict(each), "total": each.total} for way, each in self.memory.items()}
        return {"format": FORMAT, **asdict(self), "memory": memory}

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each device: hours and speed."""
        return [asdict(time) for time in self.times]

    def lines(self) -> Iterator[str]:
        """Return parameters, FLOPs, memory, what fits, and time."""
        parameters, device = self.parameters, self.device
        yield (
            f"{self.model}, {self.precision}, a vocabulary of {self.vocab_size:,}: "
            f"{parameters.total / 1e6:,.1f} M parameters"
        )
        yield (
            f"  body {parameters.body / 1e6:,.1f} M, "
            f"embeddings {parameters.embeddings / 1e6:,.1f} M, head {parameters.head / 1e6:,.1f} M"
        )
        yield ""
        titles = ("steps", "tokens a step", "FLOPs a token")
        yield f"{'Phase':<7} {'objective':<10} {titles[0]:>10} {titles[1]:>14} {titles[2]:>14}"
        for index, phase in enumerate(self.phases):
            tokens = phase.rows_per_step * phase.max_seqlen
            for part in phase.objectives:
                yield (
                    f"  {index:<5} {part.objective:<10} {phase.steps:>10,} {tokens:>14,} "
                    f"{part.flops_per_token:>14.3g}"
                )
        yield f"  in all {amount(self.tokens)} tokens, {self.flops:.3g} FLOPs"
        yield ""
        yield f"Memory of each of {self.devices:,} devices, all rows of a step in one pass"
        yield f"  {'':<28} {_cells(self.memory)}"
        for field, title in _PARTS.items():
            sizes = (gigabytes(getattr(memory, field)) for memory in self.memory.values())
            yield f"  {title:<28} {_cells(sizes)}"
        yield (
            "  stored/recomputed: how activations are handled; sharded: weights, gradients and "
            "moments are split; both: recomputed and sharded"
        )
        yield ""
        yield from _fit_lines(self)
        yield ""
        yield f"Time on {self.devices:,} devices, at a share of their peak (--mfu)"
        yield f"  {'':<12} {'of peak':>8} {'tokens/s':>12} {'hours':>10}"
        for time in self.times:
            yield (
                f"  {time.device:<12} {percent(time.mfu):>8} "
                f"{time.tokens_per_second:>12,.0f} {two_digits(time.hours):>10}"
            )
        yield f"  {device.name}: {device.source}"


def _fit_lines(estimate: ResourceEstimate) -> Iterator[str]:
    device = estimate.device
    if device.memory is None:
        yield f"Fit on {device.name}: unknown; give its memory"
        return
    yield f"Rows that fit in one pass on {device.name} ({gigabytes(device.memory)})"
    yield f"  {'phase':<12} {'needed':>15} {_cells(estimate.memory)}"
    for index, phase in enumerate(estimate.phases):
        rows = (f"{rows:,}" for rows in phase.rows_that_fit.values())
        yield f"  {index:<12} {phase.rows_per_device:>15,} {_cells(rows)}"
    if estimate.compute is None:
        yield "  suggested: a device with more memory, or a smaller model"
    elif not estimate.compute:
        yield "  suggested: the default compute settings"
    else:
        settings = (f"--compute {key}={value}".lower() for key, value in estimate.compute.items())
        yield f"  suggested: {' '.join(settings)}"


def _cells(texts: Iterable[str]) -> str:
    return " ".join(f"{text:>12}" for text in texts)
