"""Summed loss of a model on supervised rows, in one pass."""

from __future__ import annotations

from torch import Tensor
from transformers import PreTrainedModel

from biphasic.model.compute.forward import first_position
from biphasic.objectives.supervision import Supervision
from biphasic.training.step.passes import Pass, PassLoss, pass_loss


def summed_loss(
    model: PreTrainedModel, supervision: Supervision, *, loss: PassLoss = pass_loss
) -> Tensor:
    """Return the summed loss of all supervised tokens: a scalar in fp32, in nats."""
    given = Pass.of(supervision, first_position=first_position(model))
    return loss(model, given.to(model.device))
