"""Cost estimates of planned training: steps, tokens, FLOPs and bytes.

Counts are nominal. Every row counts as full and as one document, as in the reference study
(tokens = rows times length). Shorter documents cost the same matrix products and less attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from biphasic.data.packing import PackedBatch
from biphasic.model.presets import Architecture
from biphasic.model.shape import ModelShape, architecture_shape
from biphasic.objectives.alternate import Alternate
from biphasic.objectives.masking import MaskingConfig
from biphasic.objectives.mix import Mix
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.study.plan.expansion import is_steady
from biphasic.training.ledger import step_flops
from biphasic.training.recipe import PretrainedModel, Recipe
from biphasic.training.timeline import PlacedPhase

if TYPE_CHECKING:
    from biphasic.study.plan.training import Segment

_BYTES_PER_WEIGHT = 4 * 3
"""The weight and AdamW's two moments, in fp32."""


@dataclass(frozen=True)
class Cost:
    """The cost of a part of training.

    Attributes:
        tokens: Rows times their length.
        flops: Of matrix products; None if the model's dimensions are unknown.
    """

    steps: int = 0
    tokens: int = 0
    flops: int | None = 0

    def __add__(self, other: Cost) -> Cost:
        both = self.flops is not None and other.flops is not None
        return Cost(
            self.steps + other.steps,
            self.tokens + other.tokens,
            (self.flops or 0) + (other.flops or 0) if both else None,
        )


def training_cost(recipe: Recipe, *, start: int, end: int, vocab_size: int) -> Cost:
    """Return the cost of a recipe's updates from `start` to `end`."""
    shape = shape_of(recipe, vocab_size=vocab_size)
    total = Cost()
    for placed in recipe.placed_phases:
        first, last = max(start, placed.start), min(end, placed.end)
        if first >= last:
            continue
        steps, rows = last - first, placed.batches.rows_per_step
        tokens = steps * rows * placed.batches.max_seqlen
        flops = None if shape is None else rows * _row_flops(shape, placed, first, last)
        total += Cost(steps, tokens, flops)
    return total


def segment_cost(segment: Segment, vocab_size: int) -> Cost:
    """Return the cost of training a segment."""
    return training_cost(
        segment.recipe, start=segment.start, end=segment.end, vocab_size=vocab_size
    )


def shape_of(recipe: Recipe, *, vocab_size: int) -> ModelShape | None:
    """Return the matrices of a model; None for a pretrained model that is not on this machine."""
    if isinstance(recipe.model, PretrainedModel):
        return _local_shape(recipe.model.pretrained)
    architecture = recipe.architecture
    return None if architecture is None else architecture_shape(architecture, vocab_size=vocab_size)


def state_bytes(recipe: Recipe, *, vocab_size: int) -> int | None:
    """Return the size of a state on disk (weights and AdamW moments); None if unknown."""
    shape, architecture = shape_of(recipe, vocab_size=vocab_size), recipe.architecture
    if shape is None:
        return None
    # Input embeddings are as large as the head.
    weights = shape.body + 2 * shape.head + (_vectors(architecture) if architecture else 0)
    return _BYTES_PER_WEIGHT * weights


def body_parameters(recipe: Recipe, *, vocab_size: int) -> int | None:
    """Count the parameters of a new model without its language-model head.

    None if the recipe begins with a pretrained model.
    """
    architecture = recipe.architecture
    if architecture is None:
        return None
    shape = architecture_shape(architecture, vocab_size=vocab_size)
    # Input embeddings are as large as the head.
    return shape.body + shape.head + _vectors(architecture)


def _vectors(architecture: Architecture) -> int:
    """Count the weights of norms: two per layer, and the final one."""
    return architecture.hidden_size * (2 * architecture.num_layers + 1)


@lru_cache(maxsize=16)
def _local_shape(folder: str) -> ModelShape | None:
    if not Path(folder).is_dir():
        return None
    # Imported here: presets are counted without torch and transformers.
    from biphasic.model.loading.reading import read_config  # noqa: PLC0415
    from biphasic.model.matrices import config_shape  # noqa: PLC0415

    return config_shape(read_config(folder))


def _row_flops(shape: ModelShape, placed: PlacedPhase, first: int, last: int) -> int:
    """Count the FLOPs of one row over the steps `first` to `last` of a phase."""
    length = placed.batches.max_seqlen
    if is_steady(placed):
        return (last - first) * objective_flops(shape, placed.phase, length=length)
    flops: dict[str, int] = {}
    total = 0
    for step in range(first, last):
        objective = placed.objective(step)
        key = objective.model_dump_json()
        if key not in flops:
            flops[key] = objective_flops(shape, objective, length=length)
        total += flops[key]
    return total


def objective_flops(shape: ModelShape, objective: ObjectiveConfig, *, length: int) -> int:
    """Count the FLOPs of one full row in an update; `step_flops` counts those of real rows."""
    if isinstance(objective, Mix):
        parts = zip(objective.shares, objective.objectives, strict=True)
        return round(sum(s * objective_flops(shape, o, length=length) for s, o in parts))
    if isinstance(objective, Alternate):
        raise TypeError("an alternation has no FLOPs of its own: call `at` with a step first")
    share = objective.mlm_probability if isinstance(objective, MaskingConfig) else 1.0
    return step_flops(
        shape,
        rows=_full_row(length),
        supervised_tokens=round(share * length),
        causal=objective.directions == frozenset({True}),
    )


@lru_cache(maxsize=16)
def _full_row(length: int) -> PackedBatch:
    return PackedBatch(
        input_ids=np.zeros((1, length), dtype=np.int64),
        position_ids=np.arange(length, dtype=np.int64)[None],
        cu_seqlens=np.array([0, length], dtype=np.int32),
        spans=np.array([[0, length]], dtype=np.int64),
    )
