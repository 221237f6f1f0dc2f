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
from biphasic.model.shape import ModelShape, architecture_shape
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.study import EXAMPLE_TOKENS
from biphasic.study.plan.tree import is_steady
from biphasic.tasks.kinds.registry import KINDS
from biphasic.training.optimizers.optimizer import OptimizerConfig
from biphasic.training.recipe import PretrainedModel, Recipe
from biphasic.training.timeline import PlacedPhase

if TYPE_CHECKING:
    from biphasic.study.inputs.tasks import PlannedTask
    from biphasic.study.plan.plan import Plan

FP32 = 4  # bytes


@dataclass(frozen=True)
class Cost:
    """The cost of a part of training."""

    steps: int = 0
    tokens: int = 0  # Rows times their length.
    flops: int | None = 0  # Of matrix products; None if the model's dimensions are unknown.

    def __add__(self, other: Cost) -> Cost:
        both = self.flops is not None and other.flops is not None
        return Cost(
            self.steps + other.steps,
            self.tokens + other.tokens,
            (self.flops or 0) + (other.flops or 0) if both else None,
        )


@dataclass(frozen=True)
class Parameters:
    """Parameters of a model."""

    body: int
    embeddings: int  # 0 if they are the head's matrix
    head: int

    @property
    def total(self) -> int:
        """All parameters."""
        return self.body + self.embeddings + self.head


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


def job_costs(plan: Plan, example_tokens: int = EXAMPLE_TOKENS) -> dict[str, Cost]:
    """Return the cost of each job; of fine-tunings at most, or of scoring without any."""
    costs = {
        job.id: training_cost(
            job.arm.recipe, start=job.start, end=job.end, vocab_size=job.arm.vocab_size
        )
        for job in plan.segments
    }
    shapes = {
        point.state: shape_of(point.arm.recipe, vocab_size=point.arm.vocab_size)
        for point in plan.points
        if point.arm.encoder is None
    }
    shapes |= {state: _local_shape(str(folder)) for state, folder in plan.encoders.items()}
    for group in plan.groups:
        shape, task = shapes[group.state], group.training
        run = None if shape is None else group.most * run_flops(shape.body, task, example_tokens)
        steps = group.most * task.num_steps if task.is_trained else 0
        costs[group.id] = Cost(steps, flops=run)
    return costs


def run_flops(body: int, task: PlannedTask, example_tokens: int) -> int:
    """Count the FLOPs of one run, without attention: of its training, or of its test examples."""
    # Six per weight of the body and token are for training, two for scoring.
    if task.is_trained and task.protocol.is_probe:
        # A probe reads each example once, without gradients.
        passes = 2 * sum(task.num_examples.values())
    elif task.is_trained:
        passes = 6 * task.num_steps * task.protocol.batch_size
    else:  # a search reads its corpus as well, whose size is not known here
        passes = 2 * task.num_examples.get("test", 0)
    # Examples are not tokenised for a plan, so their length is assumed.
    length = min(example_tokens, task.protocol.max_seqlen)
    return passes * body * KINDS[task.info.kind].facts.texts_per_item * length


def shape_of(recipe: Recipe, *, vocab_size: int) -> ModelShape | None:
    """Return the matrices of a model; None for a pretrained model that is not on this machine."""
    if isinstance(recipe.model, PretrainedModel):
        return _local_shape(recipe.model.pretrained)
    architecture = recipe.architecture
    return None if architecture is None else architecture_shape(architecture, vocab_size=vocab_size)


def parameters_of(recipe: Recipe, *, vocab_size: int) -> Parameters | None:
    """Count the parameters of a model; None for a pretrained model that is not on this machine."""
    shape, architecture = shape_of(recipe, vocab_size=vocab_size), recipe.architecture
    if shape is None:
        return None
    # Two per layer, and the final one.
    norms = architecture.hidden_size * (2 * architecture.num_layers + 1) if architecture else 0
    # Input embeddings are as large as the head.
    embeddings = 0 if _is_tied(recipe) else shape.head
    return Parameters(body=shape.body + norms, embeddings=embeddings, head=shape.head)


def state_bytes(recipe: Recipe, *, vocab_size: int, end: int | None = None) -> int | None:
    """Return the size of a state on disk (weights and the optimizer's moments); None if unknown."""
    # The state is that after `end` updates, by default after all.
    shape = shape_of(recipe, vocab_size=vocab_size)
    parameters = parameters_of(recipe, vocab_size=vocab_size)
    if shape is None or parameters is None:
        return None
    done = [placed for placed in recipe.placed_phases if end is None or placed.start < end]
    if done and done[-1].phase.lora:  # its matrices are kept as before, too
        return FP32 * (parameters.total + shape.body)
    moments = num_moments(recipe.optimizer, parameters, layer_matrices=shape.body)
    return FP32 * (parameters.total + moments)


def num_moments(optimizer: OptimizerConfig, parameters: Parameters, *, layer_matrices: int) -> int:
    """Count the numbers that an optimizer keeps; `layer_matrices` of the parameters are in them."""
    of_matrix = optimizer.num_moments(is_layer_matrix=True)
    of_other = optimizer.num_moments(is_layer_matrix=False)
    return of_matrix * layer_matrices + of_other * (parameters.total - layer_matrices)


@lru_cache(maxsize=16)
def _local_shape(folder: str) -> ModelShape | None:
    if not Path(folder).is_dir():
        return None
    # Imported here: presets are counted without torch and transformers.
    from biphasic.model.loading.configurations import config_shape  # noqa: PLC0415
    from biphasic.model.loading.reading import read_config  # noqa: PLC0415

    return config_shape(read_config(folder))


def _is_tied(recipe: Recipe) -> bool:
    """Return whether the input embeddings of a model on this machine are its head's matrix."""
    if not isinstance(recipe.model, PretrainedModel):
        return False
    from biphasic.model.loading.reading import read_config  # noqa: PLC0415

    return getattr(read_config(recipe.model.pretrained), "tie_word_embeddings", False)


def _row_flops(shape: ModelShape, placed: PlacedPhase, first: int, last: int) -> int:
    """Count the FLOPs of one row over the steps `first` to `last` of a phase."""
    length = placed.batches.max_seqlen
    # Every step costs the same, so none of tens of thousands is looked at.
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
    """Count the FLOPs of one full row in an update; `StepInputs` counts those of real rows."""
    if len(parts := objective.parts) > 1:
        return round(sum(s * objective_flops(shape, o, length=length) for s, o in parts))
    # Pairs of texts do not use the head.
    share = 0.0 if objective.reading is not None else objective.label_share
    return shape.update_flops(
        _full_row(length),
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
