"""Sums of gradients over ranks, overlapped with the backward pass.

Gradients are placed in buckets, in reverse order of the parameters: roughly the order
in which a backward pass computes them. During the last pass of a step each gradient is copied to
its bucket in fp32, with the gradients of earlier passes, and a full bucket is summed in the
background. Buckets depend only on the trainable parameters of a phase, so the order of sums is the
same after a resume. Decision 0013 explains why this is not DistributedDataParallel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from biphasic.distributed import PendingSum, ProcessGroup
from biphasic.training.step.optimizer import MasterWeights

BUCKET_BYTES = 25 * 2**20
"""fp32 gradients summed together; DistributedDataParallel's default."""


@dataclass
class _Bucket:
    """Gradients that are summed together.

    Attributes:
        flat: Contiguous fp32 memory.
        views: View of each gradient in it, by name, in the parameter's shape.
        taken: Names of the gradients in place.
    """

    flat: Tensor
    views: dict[str, Tensor]
    taken: set[str] = field(default_factory=set)

    @property
    def is_full(self) -> bool:
        return len(self.taken) == len(self.views)


class GradientSums:
    """Sums each rank's gradients over all ranks; does nothing with a single rank."""

    def __init__(self, weights: MasterWeights, ranks: ProcessGroup) -> None:
        self._weights, self._ranks = weights, ranks
        self._buckets: list[_Bucket] = []
        self._hooks: list[RemovableHandle] = []
        self._pending: list[PendingSum] = []
        self._is_last_pass = False

    def lay_out(self) -> None:
        """Create buckets for the trainable parameters; call it whenever these change."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._buckets = [], []
        if self._ranks.is_alone or self._weights.are_sharded:
            return
        trained = {
            name: parameter
            for name, parameter in reversed(self._weights.working.items())
            if parameter.requires_grad
        }
        for names in _grouped(trained):
            bucket = _bucket({name: trained[name] for name in names})
            self._buckets.append(bucket)
            for name in names:
                hook = trained[name].register_post_accumulate_grad_hook(self._taker(bucket, name))
                self._hooks.append(hook)

    def begin(self) -> None:
        """Mark the next backward pass as the step's last, which allows summing."""
        self._is_last_pass = True

    def finish(self, loss: Tensor) -> None:
        """Wait until gradients and the loss are summed over all ranks.

        A parameter without a gradient on any rank has none afterwards, as with a single rank. The
        loss is a scalar, summed in place.

        Raises:
            LostRankError: Another rank has ended.
        """
        if self._ranks.is_alone:
            return
        if self._weights.are_sharded:  # their gradients are summed already
            self._ranks.sum_(loss)
            return
        has_gradient = torch.tensor(
            [
                name in bucket.taken or self._weights.masters[name].grad is not None
                for bucket in self._buckets
                for name in bucket.views
            ],
            dtype=torch.int32,
        )
        for bucket in self._buckets[len(self._pending) :]:
            for name in bucket.views.keys() - bucket.taken:
                self._take_late(bucket, name)
            self._sum(bucket)
        self._ranks.sum_(has_gradient)  # on the host, without waiting for a device
        self._pending.append(self._ranks.begin_sum(loss))
        for pending in self._pending:
            pending.wait()
        self._give_back(has_gradient.tolist())

    def _taker(self, bucket: _Bucket, name: str) -> Callable[[Tensor], None]:
        def take(parameter: Tensor) -> None:
            if self._is_last_pass:
                self._take(bucket, name, parameter)
                self._sum_what_is_full()

        return take

    def _take(self, bucket: _Bucket, name: str, parameter: Tensor) -> None:
        """Copy a gradient to its bucket, as `MasterWeights.gather_gradients` would accumulate it.

        Its own memory is then free.
        """
        master, place = self._weights.masters[name], bucket.views[name]
        gradient = parameter.grad
        if gradient is None:
            raise AssertionError(f"{name} has no gradient after its own hook")
        if master is parameter or master.grad is None:
            place.copy_(gradient)
        else:
            torch.add(master.grad, gradient, out=place)
        parameter.grad = master.grad = None
        bucket.taken.add(name)

    def _take_late(self, bucket: _Bucket, name: str) -> None:
        """Copy a gradient of earlier passes, or zeros, to its bucket."""
        master, place = self._weights.masters[name], bucket.views[name]
        if master.grad is None:
            place.zero_()
        else:
            place.copy_(master.grad)
        bucket.taken.add(name)

    def _sum_what_is_full(self) -> None:
        """Start the possible sums in order; the order must be the same on every rank."""
        while len(self._pending) < len(self._buckets) and self._buckets[len(self._pending)].is_full:
            self._sum(self._buckets[len(self._pending)])

    def _sum(self, bucket: _Bucket) -> None:
        self._pending.append(self._ranks.begin_sum(bucket.flat))

    def _give_back(self, has_gradient: Sequence[int]) -> None:
        """Return the gradients to the masters, and prepare for the next step."""
        views = [item for bucket in self._buckets for item in bucket.views.items()]
        for (name, view), count in zip(views, has_gradient, strict=True):
            self._weights.masters[name].grad = view if count else None
        for bucket in self._buckets:
            bucket.taken.clear()
        self._pending = []
        self._is_last_pass = False


def _grouped(parameters: dict[str, nn.Parameter]) -> list[list[str]]:
    """Divide names, in order, into groups of at most `BUCKET_BYTES`, or of one name."""
    groups: list[list[str]] = []
    room = 0
    for name, parameter in parameters.items():
        num_bytes = 4 * parameter.numel()
        if not groups or num_bytes > room:
            groups.append([])
            room = BUCKET_BYTES
        groups[-1].append(name)
        room -= num_bytes
    return groups


def _bucket(parameters: dict[str, nn.Parameter]) -> _Bucket:
    sizes = [parameter.numel() for parameter in parameters.values()]
    device = next(iter(parameters.values())).device
    flat = torch.zeros(sum(sizes), dtype=torch.float32, device=device)
    views = {
        name: part.view_as(parameter)
        for (name, parameter), part in zip(parameters.items(), flat.split(sizes), strict=True)
    }
    return _Bucket(flat, views)
