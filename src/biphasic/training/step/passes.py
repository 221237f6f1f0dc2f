"""One forward and backward pass: its input as tensors on the model's device, and its loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from biphasic.model.compute.attention import attention_arguments
from biphasic.model.compute.forward import activation_dtype, first_position
from biphasic.model.compute.layers import is_narrow
from biphasic.model.head import language_model_head
from biphasic.objectives.loss import PerLabel, summed_cross_entropy
from biphasic.objectives.supervision import StatesLoss, Supervision


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
