"""Layers compiled by torch, each on its own: one graph serves all that are alike."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from biphasic.errors import ModelError

_GRAPHS = 64
"""Of one layer: shapes of rows, causal or not, layers that are frozen or not. torch stops at 8 and
computes what comes after as it is, with no more than a warning."""


def compile_layers(model: PreTrainedModel, *, backend: str = "inductor") -> None:
    """Compile the layers of a model in place; the first pass of each shape takes long.

    Shapes are static, but for the number of documents. Names of parameters stay. What hooks into
    layers or reads other shapes once is better run `uncompiled`.

    Args:
        model: In the precision that it computes in, on its device.
        backend: Of torch.compile.

    Raises:
        ModelError: The family has no layers that transformers marks as such, or torch cannot
            compile here.
    """
    layers = [each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)]
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
    """Return a context in which compiled layers compute as if they were not."""
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
    """Keep what differs from batch to batch from asking for another graph.

    The kernels take the longest segment as a bound alone, so a row's length is as good.
    """
    if "cu_seqlens" not in options:
        return inputs, options
    torch._dynamo.maybe_mark_dynamic(options["cu_seqlens"], 0)
    return inputs, {**options, "max_seqlen": options["input_ids"].shape[1]}
