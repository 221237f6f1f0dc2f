"""Sums of gradients over ranks, taken while the backward pass still goes on.

Gradients lie in buckets, in the reverse order of the parameters: roughly that in which a backward
pass makes them. During the last pass of a step each gradient is put into its bucket in fp32, with
what earlier passes gathered, and a bucket that is full is summed in the background. Buckets follow
from what trains in a phase and from nothing else, so sums are taken in the same order after a
resume. Decision 0013 tells why this is not DistributedDataParallel.
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
"""Gradients that are summed at once, in fp32; DistributedDataParallel's own default."""


@dataclass
class _Bucket:
    """Gradients that are summed together.

    Attributes:
        flat: fp32, one stretch of memory.
        views: By name, where in it a gradient lies, in its parameter's shape.
        taken: Names of those that are in place.
    """

    flat: Tensor
    views: dict[str, Tensor]
    taken: set[str] = field(default_factory=set)

    @property
    def is_full(self) -> bool:
        return len(self.taken) == len(self.views)


class GradientSums:
    """Makes each rank's gradients those of all ranks together; alone they are that already."""

    def __init__(self, weights: MasterWeights, ranks: ProcessGroup) -> None:
        """Begin without buckets.

        Args:
            weights: Whose gradients are summed: those of the masters, in fp32.
            ranks: Who takes part.
        """
        self._weights, self._ranks = weights, ranks
        self._buckets: list[_Bucket] = []
        self._hooks: list[RemovableHandle] = []
        self._pending: list[PendingSum] = []
        self._is_last_pass = False

    def lay_out(self) -> None:
        """Make buckets for what requires gradients now; call whenever other parameters do."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._buckets = [], []
        if self._ranks.is_alone:
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
        """Say that the backward pass to come is the step's last: gradients may be summed."""
        self._is_last_pass = True

    def finish(self, loss: Tensor) -> None:
        """Wait until gradients, and a loss beside them, are the sums over all ranks.

        A parameter that no rank has a gradient for has none afterwards, as if there were one rank.

        Args:
            loss: Scalar, summed in place.

        Raises:
            LostRankError: Another rank has ended.
        """
        if self._ranks.is_alone:
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
        self._ranks.sum_(has_gradient)  # on the host: no device is waited for
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
        """Put a gradient where it is summed, as `MasterWeights.gather_gradients` would gather it.

        Its own memory is free then.
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
        """Put what only earlier passes gathered, or nothing, where it is summed."""
        master, place = self._weights.masters[name], bucket.views[name]
        if master.grad is None:
            place.zero_()
        else:
            place.copy_(master.grad)
        bucket.taken.add(name)

    def _sum_what_is_full(self) -> None:
        """Begin the sums that can be; in order, which must be the same on every rank."""
        while len(self._pending) < len(self._buckets) and self._buckets[len(self._pending)].is_full:
            self._sum(self._buckets[len(self._pending)])

    def _sum(self, bucket: _Bucket) -> None:
        self._pending.append(self._ranks.begin_sum(bucket.flat))

    def _give_back(self, has_gradient: Sequence[int]) -> None:
        """Let masters have their gradients, and make ready for the next step."""
        views = [item for bucket in self._buckets for item in bucket.views.items()]
        for (name, view), count in zip(views, has_gradient, strict=True):
            self._weights.masters[name].grad = view if count else None
        for bucket in self._buckets:
            bucket.taken.clear()
        self._pending = []
        self._is_last_pass = False


def _grouped(parameters: dict[str, nn.Parameter]) -> list[list[str]]:
    """Divide names, in order, into groups of at most `BUCKET_BYTES`, or of one."""
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
