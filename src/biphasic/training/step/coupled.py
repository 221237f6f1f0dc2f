"""Gradients of a loss that couples all texts of a step, in passes over some of them.

Every pass is read first without storing activations, for the vectors. The loss gives the gradient
of each vector. Then each pass is read again, and continues the gradients of its vectors. Memory is
that of one pass. As training uses no dropout, both readings give the same vectors.

Reference: Gao et al. 2021, "Scaling deep contrastive learning batch size under memory limited
setup", arXiv:2101.06983, section 3.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from biphasic.distributed import Activity, ProcessGroup
from biphasic.training.step.divided import DividedModel
from biphasic.training.step.input import StepInput
from biphasic.training.step.passes import Pass
from biphasic.training.step.weights import MasterWeights


def coupled_backward(
    given: StepInput,
    compute: Callable[[Pass], Tensor],
    weights: MasterWeights,
    *,
    device: torch.device,
    ranks: ProcessGroup,
    divided: DividedModel | None,
) -> Tensor:
    """Accumulate the gradients of a step's coupled loss over all ranks; return the mean loss."""
    passes, loss = given.passes, given.passes[0].loss
    assert loss is not None  # noqa: S101 - the caller has asked
    is_one = len(passes) == 1  # then its activations are stored at once
    outputs = []
    with torch.set_grad_enabled(is_one):
        for rows in passes:
            ranks.heartbeat.at(Activity.COMPUTING)
            outputs.append(compute(rows.to(device)))
    if divided is not None and not is_one:
        divided.settle()
    vectors = outputs[0].new_zeros(given.num_supervised, outputs[0].shape[1])
    for rows, output in zip(passes, outputs, strict=True):
        vectors[rows.labels.to(device)] = output.detach()
    ranks.sum_(vectors)  # those of other ranks are zero here
    vectors.requires_grad_()
    mean = loss.summed(vectors, torch.arange(len(vectors), device=device)) / given.normaliser
    (gradient,) = torch.autograd.grad(mean, vectors)
    for rows in passes:
        ranks.heartbeat.at(Activity.COMPUTING)
        if divided is not None:
            divided.is_last_pass(rows is passes[-1])
        output = outputs[0] if is_one else compute(rows.to(device))
        output.backward(gradient[rows.labels.to(device)])
        weights.gather_gradients()
    return mean.detach()
