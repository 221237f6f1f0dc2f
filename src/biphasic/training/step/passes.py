"""What one forward and backward pass reads, as tensors where the model is."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from biphasic.model.compute.attention import attention_arguments
from biphasic.model.compute.forward import activation_dtype
from biphasic.model.head import language_model_head
from biphasic.objectives.loss import summed_cross_entropy
from biphasic.objectives.supervision import Supervision


@dataclass(frozen=True)
class Pass:
    """Supervised rows as tensors, all on one device.

    Attributes:
        input_ids: int64 [num_rows, row_length].
        position_ids: int64 [num_rows, row_length]; as the model counts them.
        cu_seqlens: int32 [num_segments + 1]; borders over the flattened rows.
        positions: int64 [num_supervised]; where the model predicts, in the flattened rows.
        labels: int64 [num_supervised]; what is right there.
        max_seqlen: Length of the longest segment.
        causal: Whether a token sees only those before it.
    """

    input_ids: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    positions: Tensor
    labels: Tensor
    max_seqlen: int
    causal: bool

    @classmethod
    def of(cls, supervision: Supervision, *, first_position: int) -> Pass:
        """Return supervised rows as tensors on the CPU.

        Args:
            supervision: Rows and labels.
            first_position: Of a sequence's first token (`model.forward.first_position`).
        """
        rows = supervision.rows
        return cls(
            input_ids=torch.from_numpy(rows.input_ids),
            position_ids=torch.from_numpy(rows.position_ids) + first_position,
            cu_seqlens=torch.from_numpy(rows.cu_seqlens),
            positions=torch.from_numpy(supervision.positions),
            labels=torch.from_numpy(supervision.labels),
            max_seqlen=rows.max_seqlen,
            causal=supervision.causal,
        )

    def pinned(self) -> Pass:
        """Return a copy in memory from which CUDA reads without making anyone wait."""
        return replace(self, **{name: each.pin_memory() for name, each in self._tensors()})

    def to(self, device: torch.device) -> Pass:
        """Return the pass on a device; in order with all that the device is told, and no sooner.

        From pinned memory nobody waits. The copies are queued with the computation, so no other
        stream has to be kept in step; token ids take microseconds.
        """
        return replace(
            self, **{name: each.to(device, non_blocking=True) for name, each in self._tensors()}
        )

    def _tensors(self) -> list[tuple[str, Tensor]]:
        values = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return [(name, value) for name, value in values if isinstance(value, Tensor)]


def pass_loss(model: PreTrainedModel, given: Pass) -> Tensor:
    """Return the sum of the losses of a pass: a scalar in fp32, in nats, on the device.

    The head sees supervised positions only. Nothing waits for the device, where a
    variable-length kernel serves it.

    Args:
        model: With a language-model head.
        given: On the model's device.
    """
    output = model.base_model(
        input_ids=given.input_ids,
        position_ids=given.position_ids,
        use_cache=False,  # decoders would copy every key and value into one
        **attention_arguments(
            given.cu_seqlens,
            max_seqlen=given.max_seqlen,
            row_length=given.input_ids.shape[1],
            causal=given.causal,
            dtype=activation_dtype(model),
        ),
    )
    head = language_model_head(model)
    states = head.transformed(output.last_hidden_state.flatten(0, 1)[given.positions])
    return summed_cross_entropy(
        states,
        head.weight.to(states.dtype),
        given.labels,
        bias=None if head.bias is None else head.bias.to(states.dtype),
        softcap=head.softcap,
    )
