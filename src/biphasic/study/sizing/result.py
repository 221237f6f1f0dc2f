"""What an estimate says, as a record and as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from biphasic.amounts import amount, gigabytes, percent, two_digits
from biphasic.shown import Shown
from biphasic.study.plan.cost import Parameters
from biphasic.study.sizing.devices import Device
from biphasic.study.sizing.memory import Memory

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
