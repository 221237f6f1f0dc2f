"""Inputs of an update besides the model; they depend on data alone and can be prepared ahead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor
from transformers import PreTrainedModel

from biphasic.data.pairs import PairReader
from biphasic.data.rows import BatchShape, RowBatch, RowPlan, RowReader
from biphasic.distributed import ALONE, ProcessGroup
from biphasic.model.compute.attention import attention_arguments
from biphasic.model.compute.forward import activation_dtype, first_position
from biphasic.model.compute.layers import is_narrow
from biphasic.model.head import language_model_head
from biphasic.model.loading.configurations import model_shape
from biphasic.objectives.loss import summed_cross_entropy
from biphasic.objectives.supervision import PerLabel, StatesLoss, Supervision
from biphasic.training.compute import ComputeConfig
from biphasic.training.lineage import TrainingData
from biphasic.training.recipe import Recipe


class StepRows:
    """Reads a recipe's rows: a pure function of data, recipe and step."""

    # Reading a corpus resumes where it stopped, however many phases with another corpus lie
    # between. As in identities, a corpus is identified by its content: a copy in another folder is
    # the same.

    def __init__(self, recipe: Recipe, data: TrainingData) -> None:
        """Prepare one plan per corpus."""
        self._phases, fingerprint = recipe.placed_phases, data.fingerprint
        self._contents = [fingerprint.hash_of(placed.corpus) for placed in self._phases]
        self._readers: dict[str, RowReader] = {}
        self._pairs = self._pair_readers(recipe, data)
        for content, placed in zip(self._contents, self._phases, strict=True):
            if content in self._readers or placed.index in self._pairs:
                continue
            corpus = data.corpora[placed.corpus] if placed.corpus else data.corpus
            shapes = self._shapes_of(content)
            plan = RowPlan(
                corpus.lengths, shapes, data_seed=recipe.seeds.data_seed, kind=recipe.rows
            )
            self._readers[content] = RowReader(corpus, plan, data.tokenizer.special_ids)

    def batch(self, step: int) -> RowBatch:
        """Return the rows of update `step` of the run."""
        phase = next(placed for placed in self._phases if step < placed.end)
        if phase.index in self._pairs:
            return self._pairs[phase.index].batch(step - phase.start)
        content = self._contents[phase.index]
        # Steps of earlier phases on the same text: each document is read once an epoch, also across
        # phases.
        before = sum(shape.num_steps for shape in self._shapes_of(content, end=phase.index))
        return self._readers[content].batch(before + step - phase.start)

    def _pair_readers(self, recipe: Recipe, data: TrainingData) -> dict[int, PairReader]:
        """Return the readers of phases with pairs; each goes on where an earlier one stopped."""
        readers: dict[int, PairReader] = {}
        places: Counter[str] = Counter()
        for content, placed in zip(self._contents, self._phases, strict=True):
            if (reading := placed.phase.reading) is None:
                continue
            readers[placed.index] = PairReader(
                data.pairs[reading.folder],
                data.tokenizer,
                reading,
                first_place=places[content],
                max_seqlen=placed.batches.max_seqlen,
                data_seed=recipe.seeds.data_seed,
            )
            places[content] += placed.phase.steps * reading.batch
        return readers

    def _shapes_of(self, content: str, *, end: int | None = None) -> list[BatchShape]:
        """Return the shapes of the rows that phases, up to `end`, read from a corpus."""
        pairs = zip(self._contents[:end], self._phases[:end], strict=True)
        return [placed.batches for phase_content, placed in pairs if phase_content == content]


@dataclass(frozen=True)
class StepInput:
    """Rows of an update, and values known before it runs."""

    batch: RowBatch  # the rows of all ranks, for the records
    sha256: bytes
    # Input of this rank's model, in one or more passes; pinned if the device is CUDA. None if by
    # chance its rows have no label.
    passes: tuple[Pass, ...]
    num_supervised: int  # labels of all passes of all ranks
    normaliser: float  # what the sum of their losses is divided by
    flops: int  # FLOPs of the whole update, over all ranks

    @property
    def is_coupled(self) -> bool:
        """Whether the loss needs the vectors of all passes at once."""
        return bool(self.passes) and self.passes[0].loss is not None and self.passes[0].loss.couples


class StepInputs:
    """Reads, masks, hashes and arranges the rows of steps: a pure function of the step."""

    # Each rank reads and masks the rows of all ranks, which takes a thousandth of a step, and then
    # takes its share. Rows, masks and records therefore do not depend on the number of ranks.

    def __init__(
        self,
        recipe: Recipe,
        data: TrainingData,
        model: PreTrainedModel,
        *,
        compute: ComputeConfig,
        ranks: ProcessGroup = ALONE,
    ) -> None:
        """Check that every phase fits: its rows in passes, with those held out, and its pairs."""
        self._recipe, self._compute, self._ranks = recipe, compute, ranks
        self._rows, self._vocabulary = StepRows(recipe, data), data.vocabulary
        self._shape, self._first_position = model_shape(model), first_position(model)
        self._pins = model.device.type == "cuda"
        # Held-out rows have the recipe's length, whatever its phases set.
        for length in (
            recipe.max_seqlen,
            *(phase.batches.max_seqlen for phase in recipe.placed_phases),
        ):
            compute.rows_per_pass(length)
        for placed in recipe.placed_phases:
            if (reading := placed.phase.reading) is not None:
                pairs = data.pairs[reading.folder]
                placed.phase.check_pairs(pairs, width=model.config.hidden_size)

    def of(self, step: int) -> StepInput:
        """Return the input of update `step` of the run."""
        batch = self._rows.batch(step)
        objective = self._recipe.phase_at(step).objective(step)
        parts = objective.checked_parts(
            batch, self._vocabulary, mask_seed=self._recipe.seeds.mask_seed
        )
        rows_per_pass = self._compute.rows_per_pass(batch.packed.row_length)
        passes = (
            Pass.of(supervision, first_position=self._first_position)
            for supervision in passes_of(parts, self._ranks, rows_per_pass)
        )
        return StepInput(
            batch=batch,
            sha256=batch.sha256(),
            passes=tuple(rows.pinned() if self._pins else rows for rows in passes),
            num_supervised=sum(len(part.labels) for part in parts),
            normaliser=sum(part.normaliser for part in parts),
            flops=sum(
                self._shape.update_flops(
                    part.rows, supervised_tokens=part.head_tokens, causal=part.causal
                )
                for part in parts
            ),
        )


def passes_of(
    parts: Sequence[Supervision], ranks: ProcessGroup, rows_per_pass: int | None
) -> Iterator[Supervision]:
    """Return a rank's passes over its rows, as many as on every other rank."""
    # Each part is divided separately: objectives differ in time, so every rank gets some of each.
    # All ranks gather weights and sum gradients together, so one that lacks rows for a pass reads
    # one without labels.
    if ranks.is_alone:
        for part in parts:
            yield from part.split(rows_per_pass)
        return
    before = 0
    for part in parts:
        num_rows = part.rows.num_rows
        start, end = ranks.share(num_rows, before=before)
        before += num_rows
        most_rows = -(-num_rows // ranks.dp_world_size)
        num_passes = -(-most_rows // (rows_per_pass or most_rows))
        borders = [start + index * (end - start) // num_passes for index in range(num_passes + 1)]
        for first, last in pairwise(borders):
            # A rank without rows still takes part in the gathering and the sums of the others.
            yield part.part(first, last) if first < last else part.part(0, 1).without_labels()


@dataclass(frozen=True)
class Pass:
    """Supervised rows as tensors, all on one device."""

    input_ids: Tensor  # int64 [num_rows, row_length]
    position_ids: Tensor  # int64 [num_rows, row_length]; numbered as the model expects
    cu_seqlens: Tensor  # int32 [num_segments + 1]; segment borders in the flattened rows
    positions: Tensor  # int64 [num_supervised]; predicted positions in the flattened rows
    labels: Tensor  # int64 [num_supervised]; their labels
    max_seqlen: int  # length of the longest segment
    causal: bool  # whether a token attends only to those before it
    loss: StatesLoss | None = None  # the objective's own loss, if it has one
    # fp32 [num_supervised]; factors of the labels' losses. None for 1.
    weights: Tensor | None = None
    per_label: PerLabel | None = None  # A loss in place of the cross-entropy
    values: Tensor | None = None  # fp32 [num_supervised, any]; what `per_label` gets as well

    @classmethod
    def of(cls, supervision: Supervision, *, first_position: int) -> Pass:
        """Convert supervised rows to tensors on the CPU."""
        rows = supervision.rows
        return cls(
            input_ids=torch.from_numpy(rows.input_ids),
            position_ids=torch.from_numpy(rows.position_ids) + first_position,
            cu_seqlens=torch.from_numpy(rows.cu_seqlens),
            positions=torch.from_numpy(supervision.positions),
            labels=torch.from_numpy(supervision.labels),
            max_seqlen=rows.max_seqlen,
            causal=supervision.causal,
            loss=supervision.loss,
            weights=None if supervision.weights is None else torch.from_numpy(supervision.weights),
            per_label=supervision.per_label,
            values=None if supervision.values is None else torch.from_numpy(supervision.values),
        )

    def pinned(self) -> Pass:
        """Return a copy in pinned memory, which CUDA reads asynchronously."""
        return replace(self, **{name: tensor.pin_memory() for name, tensor in self._tensors()})

    def to(self, device: torch.device) -> Pass:
        """Return the pass on a device; the copy is queued in order with the computation."""
        # Copies from pinned memory do not block. They share the computation's stream, so no other
        # stream needs synchronization; copying token ids takes microseconds.
        return replace(
            self, **{name: tensor.to(device, non_blocking=True) for name, tensor in self._tensors()}
        )

    def _tensors(self) -> list[tuple[str, Tensor]]:
        values = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return [(name, value) for name, value in values if isinstance(value, Tensor)]


def pass_loss(model: PreTrainedModel, given: Pass, *, dtype: torch.dtype | None = None) -> Tensor:
    """Return the summed loss of a pass: a scalar in fp32, in nats, on the device."""
    # The head reads supervised positions only, and so does EuroBERT's last layer where they are
    # few: in causal passes nearly all tokens are predicted. Nothing waits for the device. `dtype`
    # is the compute precision; None is that of the model's weights.
    # For a loss that couples vectors, return these: `coupled_backward` computes the loss.
    predicts_few = given.loss is None and not given.causal and len(given.positions) > 0
    narrows = predicts_few and is_narrow(model)
    output = model.base_model(
        input_ids=given.input_ids,
        position_ids=given.position_ids,
        use_cache=False,  # decoders would copy all keys and values
        **attention_arguments(
            given.cu_seqlens,
            max_seqlen=given.max_seqlen,
            shape=(given.input_ids.shape[0], given.input_ids.shape[1]),
            causal=given.causal,
            dtype=dtype or activation_dtype(model),
        ),
        **({"predicted": given.positions} if narrows else {}),
    )
    hidden = output.last_hidden_state.flatten(0, 1)
    if given.loss is not None:
        vectors = given.loss.vectors(hidden, given.positions, given.cu_seqlens)
        return vectors if given.loss.couples else given.loss.summed(vectors, given.labels)
    head = language_model_head(model)
    states = head.transformed(hidden if narrows else hidden[given.positions])
    return summed_cross_entropy(
        states,
        head.weight.to(states.dtype),
        given.labels,
        bias=None if head.bias is None else head.bias.to(states.dtype),
        softcap=head.softcap,
        weights=given.weights,
        per_label=given.per_label,
        values=given.values,
    )


def summed_loss(
    model: PreTrainedModel,
    supervision: Supervision,
    *,
    loss: Callable[[Pass], Tensor] | None = None,
) -> Tensor:
    """Return the summed loss of all supervised tokens: a scalar in fp32, in nats."""
    # `loss` computes that of a pass; `pass_loss` by default.
    given = Pass.of(supervision, first_position=first_position(model))
    return (loss or partial(pass_loss, model))(given.to(model.device))
