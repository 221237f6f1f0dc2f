"""Packed rows through a model, to one hidden state per token."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from biphasic.data.packing import PackedBatch
from biphasic.model.attention import attention_arguments


def hidden_states(model: PreTrainedModel, batch: PackedBatch, *, causal: bool) -> Tensor:
    """Run the body of a model over packed rows.

    Args:
        model: Loaded by `biphasic.model.build`; with or without a language-model head.
        batch: Rows of packed sequences.
        causal: Whether a token sees only those before it.

    Returns:
        [num_rows * row_length, hidden_size]: final states after the last norm, row by row.
    """
    device = model.device
    output = model.base_model(
        input_ids=torch.from_numpy(batch.input_ids).to(device),
        position_ids=torch.from_numpy(batch.position_ids).to(device),
        use_cache=False,  # decoders would copy every key and value into one
        **attention_arguments(
            torch.from_numpy(batch.cu_seqlens).to(device),
            max_seqlen=batch.max_seqlen,
            row_length=batch.row_length,
            causal=causal,
            dtype=activation_dtype(model),
        ),
    )
    return output.last_hidden_state.flatten(0, 1)


def activation_dtype(model: PreTrainedModel) -> torch.dtype:
    """Return the precision that a model computes in; its embeddings may be kept in another."""
    *_, last = model.base_model.parameters()
    return last.dtype
