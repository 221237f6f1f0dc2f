"""Summed loss of a model on supervised rows."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from biphasic.model.forward import hidden_states
from biphasic.model.head import language_model_head
from biphasic.objectives.loss import summed_cross_entropy
from biphasic.objectives.supervision import Supervision


def summed_loss(model: PreTrainedModel, supervision: Supervision) -> Tensor:
    """Return the sum of the losses of all supervised tokens: a scalar in fp32, in nats.

    The head sees supervised positions only.
    """
    hidden = hidden_states(model, supervision.rows, causal=supervision.causal)
    positions = torch.from_numpy(supervision.positions).to(hidden.device)
    labels = torch.from_numpy(supervision.labels).to(hidden.device)
    head = language_model_head(model)
    states = head.transformed(hidden[positions])
    return summed_cross_entropy(
        states,
        head.weight.to(states.dtype),
        labels,
        bias=None if head.bias is None else head.bias.to(states.dtype),
        softcap=head.softcap,
    )
