"""Summed loss of a model on one supervised batch."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from biphasic.data.rows import RowBatch
from biphasic.model.build import head_weight
from biphasic.model.forward import hidden_states
from biphasic.objectives.loss import summed_cross_entropy
from biphasic.objectives.supervision import Supervision


def summed_loss(
    model: PreTrainedModel, batch: RowBatch, supervision: Supervision, *, causal: bool
) -> Tensor:
    """Return the sum of the losses of all supervised tokens: a scalar in fp32, in nats.

    The head sees supervised positions only.
    """
    shown = replace(batch.packed, input_ids=supervision.input_ids)
    hidden = hidden_states(model, shown, causal=causal)
    positions = torch.from_numpy(supervision.positions).to(hidden.device)
    labels = torch.from_numpy(supervision.labels).to(hidden.device)
    head = head_weight(model).to(hidden.dtype)
    return summed_cross_entropy(hidden[positions], head, labels)
