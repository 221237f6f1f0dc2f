"""Compiles a model's layers with torch, one at a time: equal layers share one graph."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from biphasic.errors import ModelError

_GRAPHS = 64
"""Graphs per layer: row shapes, causal or not, frozen or not. torch's default limit is 8; beyond
it, torch only warns and runs without compilation."""


def compile_layers(model: PreTrainedModel, *, backend: str = "inductor") -> None:
    """Compile the layers of a model in place; the first pass of each shape is slow.

    Shapes are static, except for the number of documents. Parameter names do not change. Code that
    hooks into layers or reads other shapes once should run `uncompiled`. The model is in its
    compute precision, on its device.

    Raises:
        ModelError: The family has no layers that transformers marks as such, or torch cannot
            compile on this machine.
    """
    layers = [
        module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)
    ]
    if not layers:
        raise ModelError(f"{type(model).__name__}: no layers to compile; set compile: false")
    _try_out(model.device, backend)
    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, _GRAPHS)
    body = cast(nn.Module, model.base_model)
    body.register_forward_pre_hook(_same_shapes, with_kwargs=True)
    for layer in layers:
        layer.compile(backend=backend, dynamic=False)


def uncompiled() -> AbstractContextManager[Any]:
    """Return a context that disables compilation."""
    return torch.compiler.set_stance("force_eager")


def _try_out(device: torch.device, backend: str) -> None:
    """Compile something small."""

    def small(values: torch.Tensor) -> torch.Tensor:
        return (values * 2).relu() + 1

    try:
        torch.compile(small, backend=backend)(torch.ones(8, device=device))
    except (RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(
            f"compile: torch cannot compile for {device.type} here ({reason}); install a C++ "
            "compiler (and Triton for CUDA), or set compile: false"
        ) from None


def _same_shapes(
    _body: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Prevent values that differ between batches from creating new graphs.

    The kernels use the longest segment only as a bound, so the row length serves as well.
    """
    if "cu_seqlens" not in options:
        return inputs, options
    torch._dynamo.maybe_mark_dynamic(options["cu_seqlens"], 0)
    return inputs, {**options, "max_seqlen": options["input_ids"].shape[1]}
