"""Summed loss of a model on supervised rows, in one pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor
from transformers import PreTrainedModel

from biphasic.model.compute.forward import first_position
from biphasic.objectives.supervision import Supervision
from biphasic.training.step.passes import Pass, pass_loss


def summed_loss(
    model: PreTrainedModel,
    supervision: Supervision,
    *,
    loss: Callable[[Pass], Tensor] | None = None,
) -> Tensor:
    """Return the summed loss of all supervised tokens: a scalar in fp32, in nats.

    `loss` computes that of a pass; `pass_loss` by default.
    """
    given = Pass.of(supervision, first_position=first_position(model))
    return (loss or partial(pass_loss, model))(given.to(model.device))
