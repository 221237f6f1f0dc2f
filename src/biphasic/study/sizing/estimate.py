"""Estimates of a recipe: parameters, FLOPs, memory, what fits on a device, hours."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from biphasic.child import PYTHON
from biphasic.config import load_settings, nearest
from biphasic.errors import ConfigError, StudyError
from biphasic.model.shape import Architecture, ModelShape
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.shown import Shown
from biphasic.study import lines_of
from biphasic.study.plan.cost import (
    FP32,
    Cost,
    Parameters,
    objective_flops,
    parameters_of,
    shape_of,
    state_bytes,
    training_cost,
)
from biphasic.study.plan.plan import Plan
from biphasic.study.sizing.memory import Kernels, Memory, PassShape, Training
from biphasic.training.compute import ComputeConfig
from biphasic.training.recipe import Recipe
from biphasic.training.timeline import PlacedPhase

# Compute settings that save memory, the cheapest first: weights, gradients and moments divided over
# all devices, and activation checkpointing.
WAYS: dict[str, dict[str, Any]] = {
    "stored": {},
    "sharded": {"shard": "full"},
    "recomputed": {"activation_checkpointing": True},
    "both": {"shard": "full", "activation_checkpointing": True},
}
_MOST_ROWS = 1 << 20
_WEIGHTS = {"fp32": 4, "bf16": 6}  # bytes of a parameter that does not train


def estimate_recipe(
    recipe: Recipe, device: Device, *, mfu: float | None, devices: int, vocab_size: int
) -> ResourceEstimate:
    """Return the estimate of a recipe on devices; see `estimate`."""
    shape = shape_of(recipe, vocab_size=vocab_size)
    parameters = parameters_of(recipe, vocab_size=vocab_size)
    architecture = recipe.architecture
    if architecture is None or shape is None or parameters is None:
        raise ConfigError(
            "model: a pretrained model has no estimate; give the dimensions of the model, as in "
            "docs/recipes.md"
        )
    if not recipe.phases:
        raise ConfigError("phases: the recipe trains nothing")
    compute = ComputeConfig(processes=devices)
    compute.check_rows(recipe.placed_phases)
    kernels: Kernels = "cpu" if device.name == "cpu" else "cuda"
    ways = {
        way: _training(
            recipe, architecture, parameters, compute.model_copy(update=settings), kernels
        )
        for way, settings in WAYS.items()
        if devices > 1 or "shard" not in settings
    }
    phases = tuple(_phase(placed, shape, ways, device.memory) for placed in recipe.placed_phases)
    cost = training_cost(recipe, start=0, end=recipe.total_steps, vocab_size=vocab_size)
    others = (
        other for other in known_devices().values() if other.flops and other.name != device.name
    )
    return ResourceEstimate(
        model=recipe.model if isinstance(recipe.model, str) else "dimensions",
        vocab_size=vocab_size,
        precision=recipe.precision,
        devices=devices,
        device=device,
        mfu=mfu or device.mfu,
        parameters=parameters,
        phases=phases,
        tokens=cost.tokens,
        flops=cost.flops or 0,
        memory={
            way: max(
                (_peak(training, placed) for placed in recipe.placed_phases),
                key=lambda memory: memory.total,
            )
            for way, training in ways.items()
        },
        compute=_suggested(phases, devices),
        times=tuple(
            _time(each, cost, mfu=mfu or each.mfu, devices=devices) for each in (device, *others)
        ),
    )


def _training(
    recipe: Recipe,
    architecture: Architecture,
    parameters: Parameters,
    compute: ComputeConfig,
    kernels: Kernels,
) -> Training:
    return Training(
        architecture=architecture,
        parameters=parameters,
        precision=recipe.precision,
        processes=compute.processes,
        kernels=kernels,
        recomputes=compute.activation_checkpointing,
        shards={"none": 1, "full": compute.processes}.get(compute.shard, compute.shard_size or 1),
        optimizer=recipe.optimizer,
    )


def _phase(
    placed: PlacedPhase, shape: ModelShape, ways: Mapping[str, Training], memory: float | None
) -> PhaseEstimate:
    length, rows = placed.batches.max_seqlen, _needed(ways["stored"], placed)
    return PhaseEstimate(
        steps=placed.phase.steps,
        max_seqlen=length,
        rows_per_step=placed.batches.rows_per_step,
        rows_per_device=rows,
        objectives=tuple(
            ObjectiveEstimate(
                objective.short_name,
                sum(share * _labels(part) for share, part in objective.parts),
                objective_flops(shape, objective, length=length) / length,
            )
            for objective in placed.phase.turns
        ),
        rows_that_fit={}
        if memory is None
        else {way: _rows_that_fit(each, placed, memory) for way, each in ways.items()},
    )


def _labels(objective: ObjectiveConfig) -> float:
    """Return the most labels per token that the head reads; pairs of texts do not use it."""
    return 0.0 if objective.reading is not None else objective.most_labels


def _needed(training: Training, placed: PlacedPhase) -> int:
    """Return the rows of a step that a device reads, at most."""
    return -(-placed.batches.rows_per_step // training.processes)


def _peak(training: Training, placed: PlacedPhase, most: int | None = None) -> Memory:
    """Return the memory of a process at the peak of a step, in passes of at most so many rows."""
    needed, length = _needed(training, placed), placed.batches.max_seqlen
    # More rows than a step has are asked for, too: how many would fit is part of the estimate.
    rows = needed if most is None else most
    # Each part of a step has passes of its own.
    num_parts = max(len(turn.parts) for turn in placed.phase.turns)
    largest = PassShape(
        rows,
        length,
        supervised=round(_labels(placed.phase) * rows * length),
        # Between three and more passes, memory does not differ.
        num_passes=min(3, -(-needed // rows) + num_parts - 1),
    )
    return replace(training, lora=placed.phase.lora).peak(largest).of_process()


def least_memory(recipe: Recipe, *, vocab_size: int, compute: ComputeConfig, is_gpu: bool) -> int:
    """Return the peak memory of a process in bytes; 0 if unknown."""
    # Of a pretrained model, weights, gradients and moments are counted; by LoRA, weights alone.
    parameters = parameters_of(recipe, vocab_size=vocab_size)
    if parameters is None:
        return 0
    if recipe.architecture is None:
        full = [placed.end for placed in recipe.placed_phases if not placed.phase.lora]
        if not full:
            return _WEIGHTS[recipe.precision] * parameters.total
        state = state_bytes(recipe, vocab_size=vocab_size, end=full[-1]) or 0
        return state + FP32 * parameters.total
    kernels = "cuda" if is_gpu else "cpu"
    training = _training(recipe, recipe.architecture, parameters, compute, kernels)
    limits = [(p, compute.rows_per_pass(p.batches.max_seqlen)) for p in recipe.placed_phases]
    rows = [(placed, limit and min(limit, _needed(training, placed))) for placed, limit in limits]
    return max((_peak(training, *each).total for each in rows), default=0)


def plan_memory(plan: Plan) -> int:
    """Return the peak memory of a process of the largest training, at least; 0 if unknown."""
    compute = plan.study.config.compute
    return max(
        least_memory(arm.recipe, vocab_size=arm.vocab_size, compute=compute, is_gpu=False)
        for arm in plan.arms
    )


def _rows_that_fit(training: Training, placed: PlacedPhase, memory: float) -> int:
    """Return the most rows per pass; fewer than a device reads in a step take several passes."""
    needed = _needed(training, placed)

    def fits(rows: int) -> bool:
        return _peak(training, placed, rows).total <= memory

    # The memory of one pass, and of several, grows with the rows; of several, it is larger.
    # Bisection, as the peak changes between moments and has no formula to solve for the rows.
    low, high = (needed, _MOST_ROWS) if fits(needed) else (0, needed)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _suggested(phases: tuple[PhaseEstimate, ...], devices: int) -> dict[str, Any] | None:
    """Return compute settings with which every phase fits."""
    # Several passes cost little, sharding more, and activation checkpointing a third of the time.
    for way, settings in WAYS.items():
        rows = [number for phase in phases if (number := phase.rows_that_fit.get(way))]
        if len(rows) < len(phases):
            continue
        limits = [
            number * phase.max_seqlen
            for number, phase in zip(rows, phases, strict=True)
            if number < phase.rows_per_device
        ]
        limit = min(limits, default=0)
        # One limit serves all phases, and must hold a row of each.
        if limits and limit < max(phase.max_seqlen for phase in phases):
            continue
        found: dict[str, Any] = {"processes": devices} if devices > 1 else {}
        if limits:
            found["max_tokens_per_pass"] = limit
        return found | settings
    return None


def _time(device: Device, cost: Cost, *, mfu: float, devices: int) -> TimeEstimate:
    """Return the time on all devices, at a share of their peak."""
    seconds = (cost.flops or 0) / (devices * mfu * (device.flops or 0))
    return TimeEstimate(device.name, mfu, cost.tokens / seconds, seconds / 3600)


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


@cache
def known_devices() -> dict[str, Device]:
    """Return the devices of the table, by name."""
    table = load_settings(Path(__file__).with_name("devices.yaml"))
    return {name: Device(name, **about) for name, about in table.items()}


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
    known = known_devices()
    if name not in known:
        raise ConfigError(f"device: unknown value {name[:80]!r}{nearest(name, known)}")
    device = replace(known[name], **given)
    if given and known[name].flops is not None:
        changed = ", ".join(field.name for field in fields(device) if field.name in given)
        device = replace(device, source=f"{device.source}; {changed} as given")
    if device.flops is None:
        raise ConfigError(f"device: {name} has no speed of its own; give its FLOP/s with flops")
    return device


FORMAT = "biphasic.estimate/1"


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

    def lines(self) -> Sequence[str]:
        """Return parameters, FLOPs, memory, what fits, and time."""
        return lines_of("estimate", estimate=self)


_MODULE = "biphasic.study.sizing.speed"


class Speed(NamedTuple):
    """What this machine computes: FLOP/s of a job of one thread, jobs at once, and advice."""

    flops_per_second: float
    num_jobs: int
    advice: str = ""
    """A line that names a faster precision; empty if there is none."""


def speed_here(precision: str) -> Speed:
    """Measure in a process of its own."""
    command = [*PYTHON, "-m", _MODULE, precision]
    done = subprocess.run(  # noqa: S603 - our own module
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise StudyError(f"the speed of this machine cannot be measured ({reason}); give --rate")
    # In a process of its own: OMP_NUM_THREADS counts only before torch is loaded.
    return Speed(**json.loads(done.stdout.splitlines()[-1]))  # imports may have printed too
