"""The fastest library for products of matrices on this processor: measured once, and remembered.

Another library rounds differently. All processes of a machine therefore share one choice, a resumed
run continues to the same bits, and results record it (`training/metrics_log.py`).

torch multiplies fp32 by MKL. On some AMD processors MKL uses half of their vector width (100
against 220 GFLOP/s on one core of an EPYC with AVX-512); on Intel's, oneDNN is the slow one for
weight gradients, since it copies both transposed factors first (a head's: 95 ms against 54 ms by
MKL). bf16 instructions do not mean fast products either: a Xeon without AMX multiplies bf16 at half
of its fp32 speed, and AVX2 has none at all (0.3 to 3 GFLOP/s). bf16 factors may be multiplied in
fp32 and the result rounded to bf16, as the kernels do, in another order.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from filelock import FileLock
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from biphasic.files import digest, write_text

Library = Literal["mkl", "onednn"]
T = TypeVar("T")

_LIMITS = (
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "MKL_ENABLE_INSTRUCTIONS",
)  # environment variables that limit the instructions of torch and of both libraries
# Tokens, outputs and inputs of what is measured: layers of `nano` and `25m`, and a block of a head.
_SHAPES = ((2048, 512, 192), (2048, 1408, 512), (1024, 4096, 192))
_ROUNDS = 10
# A smaller gain leaves the first choice: noise would decide, and equal machines would differ.
_CLEARLY = 1.05


class Products(NamedTuple):
    """The library for each product of a linear layer in fp32, and how bf16 is multiplied."""

    # `widens_bf16` is whether bf16 factors are multiplied in fp32.

    forward: Library
    input_gradient: Library
    weight_gradient: Library
    widens_bf16: bool

    def __str__(self) -> str:
        *libraries, widens_bf16 = self
        return f"{'/'.join(libraries)}, bf16 {'in fp32' if widens_bf16 else 'as it is'}"


@cache
def products() -> Products:
    """Return this machine's choice; the first process that asks measures it."""
    # Where no file can be written, nothing is measured: each process would choose for itself.
    return measured_once("products", Products, _measured) or _first_choice()


def measured_once(
    name: str,
    kind: type[T],
    measure: Callable[[], T],
    *,
    is_current: Callable[[T], bool] = lambda _: True,
) -> T | None:
    """Return what was measured on this machine, now or before; None if no file can be written."""
    # A choice of products is kept for good: another one would give sums that are rounded otherwise.
    try:
        cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        file = cached / "biphasic" / f"{name}-{_machine()}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        # Workers start together. Without the lock each would measure, slowed by the others, and
        # might choose otherwise.
        with FileLock(file.with_suffix(".lock")):
            known = _remembered(file, kind)
            if known is None or not is_current(known):
                known = measure()
                write_text(file, TypeAdapter(kind).dump_json(known).decode())
            return known
    except (OSError, RuntimeError):  # the latter of Path.home(), for a user without one
        return None


def _remembered(file: Path, kind: type[T]) -> T | None:
    """Return what a file holds; None if there is none, or another version's or half of one."""
    try:
        return TypeAdapter(kind).validate_json(file.read_bytes(), strict=True)
    except (FileNotFoundError, ValidationError):
        return None


def processor() -> str:
    """Return the processor's name."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def multiply(library: Library, left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `left @ right.T + bias` in fp32."""
    # This operator is torch's door to oneDNN in fp32; `nn.Linear` goes to MKL.
    if library == "onednn":
        # It copies a transposed left factor, so the smaller one is on the left.
        if bias is None and not left.is_contiguous() and len(left) > len(right):
            return multiply(library, right, left).T.contiguous()
        return torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")
    return left @ right.T if bias is None else torch.addmm(bias, left, right.T)


def widened(library: Library, left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `left @ right.T + bias`, computed in fp32 and rounded to the factors' precision."""
    wide_bias = None if bias is None else bias.float()
    return multiply(library, left.float(), right.float(), wide_bias).to(left.dtype)


def _machine() -> str:
    """Name what the choice depends on."""
    limits: list[Any] = [os.environ.get(name) for name in _LIMITS]
    capability = torch.backends.cpu.get_cpu_capability()
    machine = [processor(), capability, torch.__version__, torch.get_num_threads(), *limits]
    return digest(machine)[:16]


def _first_choice() -> Products:
    if not torch.backends.mkldnn.is_available():
        return Products("mkl", "mkl", "mkl", widens_bf16=False)
    # MKL is slow on some AMD processors; oneDNN copies the transposed factors of a weight gradient.
    library: Library = "mkl" if "Intel" in processor() else "onednn"
    has_kernels = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return Products(library, library, "mkl", widens_bf16=not has_kernels)


def _measured() -> Products:
    """Time the first choice of each product against the other one."""
    first = _first_choice()
    if not torch.backends.mkldnn.is_available():
        return first
    layers = [_factors(*shape) for shape in _SHAPES]
    libraries: list[Library] = []
    for kind, library in enumerate(first[:3]):
        other: Library = "mkl" if library == "onednn" else "onednn"
        calls = [
            [partial(multiply, name, *factors[kind]) for factors in layers]
            for name in (library, other)
        ]
        libraries.append(other if _gain(*calls) > _CLEARLY else library)
    if first.widens_bf16:  # plain loops, a hundred times slower
        return Products(*libraries, widens_bf16=True)
    rounded = [[factor.bfloat16() for factor in factors[0]] for factors in layers]
    as_it_is = [partial(nn.functional.linear, *factors) for factors in rounded]
    in_fp32 = [partial(widened, libraries[0], *factors) for factors in rounded]
    return Products(*libraries, widens_bf16=_gain(as_it_is, in_fp32) > _CLEARLY)


def _gain(calls: Sequence[Callable[[], object]], others: Sequence[Callable[[], object]]) -> float:
    """Return how many times as fast the other calls are, at their best of some rounds."""
    best = [math.inf, math.inf]
    for _ in range(_ROUNDS):
        for side, group in enumerate((calls, others)):
            # Processor time: other work on the machine would decide by wall time.
            began = time.process_time()
            for call in group:
                call()
            best[side] = min(best[side], time.process_time() - began)
    return best[0] / best[1]


def _factors(tokens: int, outputs: int, inputs: int) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return the factors of a layer's forward product, input gradient and weight gradient."""
    input, weight = torch.ones(tokens, inputs), torch.ones(outputs, inputs)
    gradient = torch.ones(tokens, outputs)
    return (input, weight), (gradient, weight.T), (gradient.T, input.T)


class FastLinear(nn.Linear):
    """`nn.Linear` whose products on a CPU are computed by the fastest libraries."""

    def forward(self, input: Tensor) -> Tensor:
        """Return `input @ weight.T + bias`."""
        if not _is_ours(input):
            return super().forward(input)
        return _Product.apply(input, self.weight, self.bias)


class _Product(torch.autograd.Function):
    """`input @ weight.T + bias`, and its gradients."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(input, weight)
        output = product(input.reshape(-1, weight.shape[1]), weight, bias)
        # A result that is a view could not be changed in place (Longformer does).
        return torch.ops.aten._unsafe_view(output, (*input.shape[:-1], weight.shape[0]))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        by_token = gradients[0].reshape(-1, weight.shape[0])  # (tokens, num_outputs)
        inputs = input.reshape(-1, weight.shape[1])  # (tokens, num_inputs)
        needs_input, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            input_gradient(by_token, weight).view(input.shape) if needs_input else None,
            weight_gradient(by_token, inputs) if needs_weight else None,
            by_token.sum(0) if needs_bias else None,
        )


def product(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `input @ weight.T + bias`, [num_tokens, num_outputs], without autograd."""
    if not _is_ours(input):
        return nn.functional.linear(input, weight, bias)
    return widened(products().forward, input, weight, bias)


def input_gradient(gradient: Tensor, weight: Tensor) -> Tensor:
    """Return `gradient @ weight`, [num_tokens, num_inputs], without autograd."""
    if not _is_ours(gradient):
        return gradient @ weight
    return widened(products().input_gradient, gradient, weight.T)


def add_input_gradient(total: Tensor | None, gradient: Tensor, weight: Tensor) -> Tensor:
    """Return `total + gradient @ weight`; `total` may change in place."""
    if total is None:
        return input_gradient(gradient, weight)
    is_fp32 = gradient.dtype == torch.float32
    if is_fp32 and _is_ours(gradient) and products().input_gradient == "mkl":
        # One call adds to the total as it multiplies, without a tensor for the product.
        return total.addmm_(gradient, weight)
    return total.add_(input_gradient(gradient, weight))


def weight_gradient(gradient: Tensor, input: Tensor) -> Tensor:
    """Return `gradient.T @ input`, [num_outputs, num_inputs], without autograd."""
    if not _is_ours(gradient):
        return gradient.T @ input
    return widened(products().weight_gradient, gradient.T, input.T)


def widens_bf16(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether this is bf16 on a processor that multiplies fp32 faster."""
    return dtype == torch.bfloat16 and device.type == "cpu" and _widens_bf16()


@torch.compiler.assume_constant_result  # torch.compile traces no cached functions
def _widens_bf16() -> bool:
    return products().widens_bf16


def _is_ours(factor: Tensor) -> bool:
    # torch.compile chooses the library itself.
    if torch.compiler.is_compiling() or factor.device.type != "cpu":
        return False
    return factor.dtype == torch.float32 or widens_bf16(factor.device, factor.dtype)
