"""Estimates of a recipe: parameters, FLOPs, memory, what fits on a device, hours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from biphasic.errors import ConfigError
from biphasic.model.shape import Architecture, ModelShape
from biphasic.study.plan.cost import (
    Cost,
    Parameters,
    objective_flops,
    parameters_of,
    shape_of,
    state_bytes,
    training_cost,
)
from biphasic.study.plan.plan import Plan
from biphasic.study.sizing.memory import Kernels, PassShape, Training
from biphasic.study.sizing.result import (
    DEVICES,
    Device,
    ObjectiveEstimate,
    PhaseEstimate,
    ResourceEstimate,
    TimeEstimate,
)
from biphasic.training.compute import ComputeConfig
from biphasic.training.recipe import Recipe
from biphasic.training.timeline import PlacedPhase

_FP32 = 4
# Compute settings that save memory, the cheapest first: weights, gradients and moments divided over
# all devices, and activation checkpointing.
WAYS: dict[str, dict[str, Any]] = {
    "stored": {},
    "sharded": {"shard": "full"},
    "recomputed": {"activation_checkpointing": True},
    "both": {"shard": "full", "activation_checkpointing": True},
}
_MOST_ROWS = 1 << 20


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
    others = (other for other in DEVICES.values() if other.flops and other.name != device.name)
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
                (
                    training.peak(_pass(placed, rows, needed=rows)).of_process()
                    for placed in recipe.placed_phases
                    if (rows := _needed(training, placed))
                ),
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
                objective.most_labels,
                objective_flops(shape, objective, length=length) / length,
            )
            for objective in placed.phase.turns
        ),
        rows_that_fit={}
        if memory is None
        else {way: _rows_that_fit(each, placed, memory) for way, each in ways.items()},
    )


def _needed(training: Training, placed: PlacedPhase) -> int:
    """Return the rows of a step that a device reads, at most."""
    return -(-placed.batches.rows_per_step // training.processes)


def _pass(placed: PlacedPhase, rows: int, *, needed: int) -> PassShape:
    """Return the largest pass of a device that reads `needed` rows of a step."""
    length = placed.batches.max_seqlen
    # Each part of a step has passes of its own.
    num_parts = max(len(turn.parts) for turn in placed.phase.turns)
    return PassShape(
        rows,
        length,
        supervised=round(placed.phase.most_labels * rows * length),
        # Between three and more passes, memory does not differ.
        num_passes=min(3, -(-needed // rows) + num_parts - 1),
    )


def least_memory(recipe: Recipe, *, vocab_size: int, compute: ComputeConfig, is_gpu: bool) -> int:
    """Return the peak memory of a process in bytes; 0 if unknown."""
    # A pretrained model's is that of weights, gradients and moments alone.
    parameters = parameters_of(recipe, vocab_size=vocab_size)
    state = state_bytes(recipe, vocab_size=vocab_size)
    if parameters is None or state is None:
        return 0
    if recipe.architecture is None:
        return state + _FP32 * parameters.total
    kernels = "cuda" if is_gpu else "cpu"
    training = _training(recipe, recipe.architecture, parameters, compute, kernels)
    peaks = []
    for placed in recipe.placed_phases:
        needed = _needed(training, placed)
        most = compute.rows_per_pass(placed.batches.max_seqlen) or needed
        peaks.append(training.peak(_pass(placed, min(most, needed), needed=needed)))
    return max((peak.of_process().total for peak in peaks), default=0)


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
        return training.peak(_pass(placed, rows, needed=needed)).of_process().total <= memory

    # The memory of one pass, and of several, grows with the rows; of several, it is larger.
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
