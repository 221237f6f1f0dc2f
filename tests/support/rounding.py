"""Bounds of rounding that hold on every processor: errors beside those of torch's own kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_Made = TypeVar("_Made")


class _StaysFp64(TorchDispatchMode):
    """Leaves numbers of fp64 as they are where code would round them to fp32, as norms do."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        if func is torch.ops.aten._to_copy.default and args[0].dtype == torch.float64:
            options = {key: value for key, value in options.items() if key != "dtype"}
        return func(*args, **options)


def exactly(function: Callable[[], _Made]) -> _Made:
    """Call what computes on tensors of fp64, and keep their precision in all steps."""
    with _StaysFp64():
        return function()


@torch.no_grad()
def assert_as_exact(
    ours: Iterable[Tensor],
    theirs: Iterable[Tensor],
    exact: Iterable[Tensor],
    *,
    times: float = 8,
    cancelled: float = 0.0,
) -> None:
    """Assert that our largest error in each tensor is at most some times that of torch's own.

    `exact` is computed in fp64. Torch's error counts as at least one rounding of the tensor's
    largest number, or of `cancelled` where larger numbers cancel: chance may leave it without any.
    """
    for place, (own, torchs, right) in enumerate(zip(ours, theirs, exact, strict=True)):
        assert own.shape == torchs.shape == right.shape, place
        assert own.dtype == torchs.dtype, place
        assert right.dtype == torch.float64, place
        largest = max(float(right.abs().max()), cancelled)
        error, torchs_error = (float((one.double() - right).abs().max()) for one in (own, torchs))
        allowed = times * max(torchs_error, torch.finfo(own.dtype).eps * largest)
        assert error <= allowed, (
            f"tensor {place}: error {error:.3g}, torch's own {torchs_error:.3g}, "
            f"largest number {largest:.3g}"
        )
