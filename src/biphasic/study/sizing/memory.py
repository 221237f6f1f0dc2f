"""Peak memory of an update: what training holds at once, from dimensions alone.

Three moments can be the peak, and all are computed:

- `head`: all activations of a pass are stored, and the head holds a group of logits;
- `backward`: the backward pass of the last layer begins;
- `update`: every gradient exists, but no activation does.

The counts follow the code: `optimizer.py` and `divided.py` for weights and gradients,
EuroBERT's layers and `attention.py` for activations, `loss.py` for the head. On a CPU,
`benchmarks/memory.py` compares them with measured memory. On a GPU they are untested. The MLP of
the last layer counts for all tokens, so `predicted_only` needs a little less. On a CPU, attention
and norms are counted with `cpu_kernels`, for the documents that need most: of 256 tokens, if rows
are not shorter.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import Literal

from biphasic.model.shape import GROUP_LOGITS, KEPT_KEYS, Architecture, Lora, lora_parameters
from biphasic.study.plan.cost import FP32, Parameters, num_moments
from biphasic.training.optimizers.adamw import AdamW
from biphasic.training.optimizers.optimizer import OptimizerConfig
from biphasic.training.recipe import Precision

# `cuda`: variable-length attention in bf16. `cpu`: a processor without bf16 instructions, on which
# bf16 factors are multiplied in fp32 and scores are stored.
Kernels = Literal["cuda", "cpu"]

_ADAMW = AdamW()
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
    lora: Lora | None = None  # what trains in place of the weights

    def peak(self, rows: PassShape) -> Memory:
        """Return the parts of the peak of an update, from the second update on."""
        before, stored = self._sums_before(rows), self._stored(rows)
        at_head = self._memory(gradients=before, activations=stored, head=self._head(rows))
        at_backward = self._memory(
            gradients=before + (self._bytes if self.processes == 1 else FP32) * self._trained.head,
            activations=stored + (rows.tokens * self._layer(rows) if self.recomputes else 0),
            temporary=rows.tokens * self._in_backward(rows),
        )
        return max(at_head, at_backward, self._at_update(rows), key=lambda memory: memory.total)

    @property
    def _trained(self) -> Parameters:
        """Parameters that have gradients and moments."""
        if self.lora is None:
            return self.parameters
        return Parameters(body=lora_parameters(self.architecture, self.lora), embeddings=0, head=0)

    @property
    def _bytes(self) -> int:
        """Size of an activation or a working weight."""
        return _BF16 if self.precision == "bf16" else FP32

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
        parameters, trained = self.parameters, self._trained
        norms = self.architecture.hidden_size * (2 * self.architecture.num_layers + 1)
        matrices = trained.body if self.lora else trained.body - norms
        moments = num_moments(self.optimizer, trained, layer_matrices=matrices)
        added = trained.total if self.lora else 0
        copies = _BF16 if self.precision == "bf16" else 0
        return Memory(
            weights=self._working(is_update=is_update) + copies * added,
            masters=FP32 * ((parameters.total + added) // self.shards),
            moments=FP32 * moments // self.shards,
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
        return FP32 * self._outside + rounded_head + 2 * self._bytes * layer

    def _at_update(self, rows: PassShape) -> Memory:
        parameters = self._trained
        copies = parameters.total - parameters.embeddings
        # The embeddings' gradient is computed apart, and then added to the sum.
        fresh = self._bytes * copies + FP32 * parameters.embeddings
        sums = FP32 * parameters.total
        if rows.num_passes > 1:
            between = fresh if self.precision == "bf16" else FP32 * parameters.embeddings
            gradients = self._sums_before(rows) + between
        else:
            gradients = max(sums, fresh)
        if self.processes > 1:
            # Of embeddings and head: the gradients, and the same in one piece to be summed.
            gradients = sums // self.shards + 2 * FP32 * self._outside
        return self._memory(
            gradients=gradients,
            is_update=True,
            temporary=FP32 * rows.tokens * self.architecture.hidden_size,
        )

    def _sums_before(self, rows: PassShape) -> int:
        """Return the bytes of fp32 gradients of earlier passes during the last one."""
        sums = FP32 * self._trained.total
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
        return (FP32 + num_results * self._bytes) * self.architecture.hidden_size + FP32

    def _layer(self, rows: PassShape) -> int:
        """Return the bytes per token that a layer stores."""
        a, size = self.architecture, self._bytes
        width = a.hidden_size
        feed_forward = 4 * size * a.intermediate_size  # gate, its SiLU, up, and their product
        shared = width // a.num_heads * a.num_key_value_heads
        kept = min(rows.row_length, KEPT_KEYS)  # attention weights of a token, in each head
        if self._widens:  # fp32 queries, keys, values and weights; the bf16 result
            attention = FP32 * (3 * width + a.num_heads * kept) + _BF16 * width
            if self._reads_documents(rows):  # the result, before it is rounded
                attention += FP32 * width
        elif size == _BF16:  # keys and values are shared by groups of heads
            attention = _BF16 * (2 * width + 2 * shared) + FP32 * a.num_heads
        elif self._has_cpu_kernels:
            attention = FP32 * (4 * width + a.num_heads * kept)
        else:
            attention = FP32 * (4 * width + a.num_heads)
        return 2 * self._norm() + attention + feed_forward

    def _in_backward(self, rows: PassShape) -> int:
        """Return the bytes per token of intermediate results in a layer's backward pass."""
        a, size = self.architecture, self._bytes
        width, inner = a.hidden_size, a.intermediate_size
        stream = 2 * size * width + FP32 * width
        # Gradients of the product, of both its factors and of the gate's input.
        feed_forward = (FP32 + _BF16) * inner + FP32 * width if self._widens else 3 * size * inner
        attention = 4 * size * width + FP32 * width
        if self._widens:
            kept = min(rows.row_length, KEPT_KEYS)
            attention = FP32 * (2 * a.num_heads * kept + 4 * width)
        # By then the gradients of the feed-forward layer have replaced its activations.
        attention -= 4 * size * inner
        return stream + max(feed_forward, attention)

    def _head(self, rows: PassShape) -> int:
        """Return the bytes of the head's group of logits and of its gradients."""
        if not rows.supervised:
            return 0
        a, size, matrix = self.architecture, self._bytes, self.parameters.head
        vocab_size = matrix // a.hidden_size
        group = min(max(GROUP_LOGITS // vocab_size, 1), rows.supervised)
        logits, states = group * vocab_size, group * a.hidden_size
        num_groups = -(-rows.supervised // max(group, 1))
        # Several groups: the sum so far and the next one in fp32, and the group's own gradient.
        matrix = self._trained.head
        sums = 0 if num_groups == 1 else FP32 * matrix
        adding = 0 if num_groups == 1 else (2 * FP32 + size) * matrix
        if self.kernels == "cpu":
            # The product for the weight's gradient copies logits and states, transposed.
            copied = 2 * FP32 * (logits + states) if matrix else 0
            product = copied + (_BF16 * logits if self._widens else 0) + FP32 * matrix
            return max(product + sums, size * logits + adding) + _HEAD_BLOCKS
        # Logits, and their softmax in fp32; bf16 logits are widened first.
        softmax = (size + FP32 + (FP32 if size == _BF16 else 0)) * logits
        return max(softmax + sums, size * logits + max(adding, size * matrix))
