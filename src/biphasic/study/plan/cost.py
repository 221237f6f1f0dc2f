"""Cost estimates of planned training: steps, tokens, FLOPs and bytes.

Counts are nominal. Every row counts as full and as one document, as in the reference study
(tokens = rows times length). Shorter documents cost the same matrix products and less attention.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from biphasic.data.packing import PackedBatch
from biphasic.model.shape import (
    GROUP_LOGITS,
    KEPT_KEYS,
    Architecture,
    ModelShape,
    architecture_shape,
)
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.study import EXAMPLE_TOKENS
from biphasic.study.plan.tree import is_steady
from biphasic.tasks.kinds.registry import KINDS
from biphasic.training.optimizers.adamw import AdamW
from biphasic.training.optimizers.optimizer import OptimizerConfig
from biphasic.training.recipe import Precision, PretrainedModel, Recipe
from biphasic.training.timeline import PlacedPhase

if TYPE_CHECKING:
    from biphasic.study.inputs.tasks import PlannedTask
    from biphasic.study.plan.plan import Plan

_FP32 = 4


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
    """Parameters of a new model; the head's matrix is not tied to the embeddings."""

    body: int
    embeddings: int
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
        passes = 2 * sum(task.num_examples.values())
    elif task.is_trained:
        passes = 6 * task.num_steps * task.protocol.batch_size
    else:  # a search reads its corpus as well, whose size is not known here
        passes = 2 * task.num_examples.get("test", 0)
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
    return Parameters(body=shape.body + norms, embeddings=shape.head, head=shape.head)


def state_bytes(recipe: Recipe, *, vocab_size: int) -> int | None:
    """Return the size of a state on disk (weights and the optimizer's moments); None if unknown."""
    shape = shape_of(recipe, vocab_size=vocab_size)
    parameters = parameters_of(recipe, vocab_size=vocab_size)
    if shape is None or parameters is None:
        return None
    moments = num_moments(recipe.optimizer, parameters, layer_matrices=shape.body)
    return _FP32 * (parameters.total + moments)


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


# `cuda`: variable-length attention in bf16. `cpu`: a processor without bf16 instructions, on which
# bf16 factors are multiplied in fp32 and scores are stored.
Kernels = Literal["cuda", "cpu"]

_ADAMW = AdamW()
_FP32 = 4
_BF16 = 2
_IDS = 2 * 8  # input_ids and position_ids
_HEAD_BLOCKS = 3 << 20  # a CPU turns logits into gradients block by block
_LIBRARIES = 12 << 20  # what libraries on a CPU keep after the first products of a size


@dataclass(frozen=True)
class PassShape:
    """The largest forward and backward pass of a device."""

    rows: int  # Number of rows.
    row_length: int  # Their length in tokens.
    supervised: int  # Labels, at most.
    num_passes: int = 1  # Passes per update, this one included.

    @property
    def tokens(self) -> int:
        """Number of tokens, padding included."""
        return self.rows * self.row_length


# Share of the peak that fragmentation may add; on a CPU, more freed memory is kept on purpose.
MARGIN = 0.1
# Memory of a process besides training: libraries on a CPU; on a GPU its context and workspaces.
PROCESS_BYTES = 1_000_000_000


@dataclass(frozen=True)
class Memory:
    """Bytes of one device at the peak of an update, by part."""

    weights: int  # Weights that the model computes with, unless they are masters.
    masters: int  # fp32 weights.
    moments: int  # Of the optimizer.
    gradients: int  # Of the model, their fp32 sums over passes, and what is summed over processes.
    activations: int  # Stored by the forward pass.
    head: int  # Logits, and gradients that the head computes beside them.
    temporary: int  # Intermediate results of the layer in progress, and what libraries keep.
    margin: int = 0  # For fragmentation.
    process: int = 0  # Besides training.

    @property
    def total(self) -> int:
        """All parts."""
        return sum(astuple(self))

    def of_process(self) -> Memory:
        """Return the memory of training with what a process needs besides."""
        return replace(self, margin=round(MARGIN * self.total), process=PROCESS_BYTES)


@dataclass(frozen=True)
class Training:
    """Everything besides rows that determines the memory of a device."""

    architecture: Architecture
    parameters: Parameters
    precision: Precision
    processes: int  # Devices that train together.
    kernels: Kernels
    recomputes: bool  # Whether layers recompute their activations (`activation_checkpointing`).
    # Devices that divide weights, moments and gradients among them (`shard`); with 1, each holds
    # all.
    shards: int = 1
    optimizer: OptimizerConfig = _ADAMW

    def peak(self, rows: PassShape) -> Memory:
        """Return the parts of the peak of an update, from the second update on."""
        before, stored = self._sums_before(rows), self._stored(rows)
        at_head = self._memory(gradients=before, activations=stored, head=self._head(rows))
        at_backward = self._memory(
            gradients=before
            + (self._bytes if self.processes == 1 else _FP32) * self.parameters.head,
            activations=stored + (rows.tokens * self._layer(rows) if self.recomputes else 0),
            temporary=rows.tokens * self._in_backward(rows),
        )
        return max(at_head, at_backward, self._at_update(rows), key=lambda memory: memory.total)

    @property
    def _bytes(self) -> int:
        """Size of an activation or a working weight."""
        return _BF16 if self.precision == "bf16" else _FP32

    @property
    def _widens(self) -> bool:
        """Whether products of bf16 factors are taken in fp32."""
        return self.kernels == "cpu" and self.precision == "bf16"

    @property
    def _has_cpu_kernels(self) -> bool:
        """Whether our kernels of attention and norms compute."""
        return self.kernels == "cpu" and self.precision == "fp32"

    def _memory(
        self,
        *,
        gradients: int,
        is_update: bool = False,
        activations: int = 0,
        head: int = 0,
        temporary: int = 0,
    ) -> Memory:
        parameters = self.parameters
        norms = self.architecture.hidden_size * (2 * self.architecture.num_layers + 1)
        moments = num_moments(self.optimizer, parameters, layer_matrices=parameters.body - norms)
        return Memory(
            weights=self._working(is_update=is_update),
            masters=_FP32 * (parameters.total // self.shards),
            moments=_FP32 * moments // self.shards,
            gradients=gradients,
            activations=activations,
            head=head,
            temporary=temporary + (_LIBRARIES if self.kernels == "cpu" else 0),
        )

    @property
    def _outside(self) -> int:
        """Parameters that FSDP gathers for a whole pass: embeddings and head."""
        return self.parameters.embeddings + self.parameters.head

    def _working(self, *, is_update: bool) -> int:
        """Return the bytes of weights to compute with, beside the masters."""
        parameters, has_copies = self.parameters, self.precision == "bf16"
        if self.processes == 1:  # embeddings are their own masters
            return _BF16 * (parameters.total - parameters.embeddings) if has_copies else 0
        if is_update:
            return 0
        layer = parameters.body // self.architecture.num_layers
        rounded_head = _BF16 * parameters.head if has_copies else 0
        # This layer and the next one.
        return _FP32 * self._outside + rounded_head + 2 * self._bytes * layer

    def _at_update(self, rows: PassShape) -> Memory:
        parameters = self.parameters
        copies = parameters.total - parameters.embeddings
        # The embeddings' gradient is computed apart, and then added to the sum.
        fresh = self._bytes * copies + _FP32 * parameters.embeddings
        sums = _FP32 * parameters.total
        if rows.num_passes > 1:
            between = fresh if self.precision == "bf16" else _FP32 * parameters.embeddings
            gradients = self._sums_before(rows) + between
        else:
            gradients = max(sums, fresh)
        if self.processes > 1:
            # Of embeddings and head: the gradients, and the same in one piece to be summed.
            gradients = sums // self.shards + 2 * _FP32 * self._outside
        return self._memory(
            gradients=gradients,
            is_update=True,
            temporary=_FP32 * rows.tokens * self.architecture.hidden_size,
        )

    def _sums_before(self, rows: PassShape) -> int:
        """Return the bytes of fp32 gradients of earlier passes during the last one."""
        sums = _FP32 * self.parameters.total
        return sums // self.shards if rows.num_passes > 1 else 0

    def _stored(self, rows: PassShape) -> int:
        """Return the bytes that the backward pass needs when the forward pass has ended."""
        layers, width = self.architecture.num_layers, self.architecture.hidden_size
        layer = self._bytes * width if self.recomputes else self._layer(rows)
        final = self._norm()
        rotary = 2 * self._bytes * width // self.architecture.num_heads  # cosines and sines
        # The mask between segments, where attention has one and keeps it.
        has_mask = self.precision == "fp32"
        if self.kernels == "cpu":
            has_mask = self._widens and self.recomputes and not self._reads_documents(rows)
        mask = self._bytes * rows.row_length if has_mask else 0
        states = 2 * self._bytes * width * rows.supervised
        return rows.tokens * (layers * layer + final + rotary + mask + _IDS) + states

    def _reads_documents(self, rows: PassShape) -> bool:
        """Return whether attention reads by document."""
        return self._has_cpu_kernels or (self._widens and rows.row_length > KEPT_KEYS)

    def _norm(self) -> int:
        """Return the bytes per token that a norm stores."""
        # Its input in fp32, what it scales, its result, and a factor.
        num_results = 1 if self._has_cpu_kernels else 2
        return (_FP32 + num_results * self._bytes) * self.architecture.hidden_size + _FP32

    def _layer(self, rows: PassShape) -> int:
        """Return the bytes per token that a layer stores."""
        a, size = self.architecture, self._bytes
        width = a.hidden_size
        feed_forward = 4 * size * a.intermediate_size  # gate, its SiLU, up, and their product
        shared = width // a.num_heads * a.num_key_value_heads
        kept = min(rows.row_length, KEPT_KEYS)  # attention weights of a token, in each head
        if self._widens:  # fp32 queries, keys, values and weights; the bf16 result
            attention = _FP32 * (3 * width + a.num_heads * kept) + _BF16 * width
            if self._reads_documents(rows):  # the result, before it is rounded
                attention += _FP32 * width
        elif size == _BF16:  # keys and values are shared by groups of heads
            attention = _BF16 * (2 * width + 2 * shared) + _FP32 * a.num_heads
        elif self._has_cpu_kernels:
            attention = _FP32 * (4 * width + a.num_heads * kept)
        else:
            attention = _FP32 * (4 * width + a.num_heads)
        return 2 * self._norm() + attention + feed_forward

    def _in_backward(self, rows: PassShape) -> int:
        """Return the bytes per token of intermediate results in a layer's backward pass."""
        a, size = self.architecture, self._bytes
        width, inner = a.hidden_size, a.intermediate_size
        stream = 2 * size * width + _FP32 * width
        # Gradients of the product, of both its factors and of the gate's input.
        feed_forward = (_FP32 + _BF16) * inner + _FP32 * width if self._widens else 3 * size * inner
        attention = 4 * size * width + _FP32 * width
        if self._widens:
            kept = min(rows.row_length, KEPT_KEYS)
            attention = _FP32 * (2 * a.num_heads * kept + 4 * width)
        # By then the gradients of the feed-forward layer have replaced its activations.
        attention -= 4 * size * inner
        return stream + max(feed_forward, attention)

    def _head(self, rows: PassShape) -> int:
        """Return the bytes of the head's group of logits and of its gradients."""
        a, size, matrix = self.architecture, self._bytes, self.parameters.head
        vocab_size = matrix // a.hidden_size
        group = min(max(GROUP_LOGITS // vocab_size, 1), rows.supervised)
        logits, states = group * vocab_size, group * a.hidden_size
        num_groups = -(-rows.supervised // max(group, 1))
        # Several groups: the sum so far and the next one in fp32, and the group's own gradient.
        sums = 0 if num_groups == 1 else _FP32 * matrix
        adding = 0 if num_groups == 1 else (2 * _FP32 + size) * matrix
        if self.kernels == "cpu":
            # The product for the weight's gradient copies logits and states, transposed.
            copied = 2 * _FP32 * (logits + states)
            product = copied + (_BF16 * logits if self._widens else 0) + _FP32 * matrix
            return max(product + sums, size * logits + adding) + _HEAD_BLOCKS
        # Logits, and their softmax in fp32; bf16 logits are widened first.
        softmax = (size + _FP32 + (_FP32 if size == _BF16 else 0)) * logits
        return max(softmax + sums, size * logits + max(adding, size * matrix))
