"""A model's layers: how to find, compile and recompute them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.eurobert.modeling_eurobert import EuroBertDecoderLayer, EuroBertModel

from biphasic.errors import ModelError

# Graphs per layer: row shapes, causal or not, frozen or not. torch's default limit is 8; beyond it,
# torch only warns and runs without compilation.
_GRAPHS = 64


def transformer_layers(model: PreTrainedModel) -> list[tuple[str, nn.Module]]:
    """Return the layers of a model's body with their names."""
    # They are those that transformers marks, or the longest list of modules.
    modules = dict(model.base_model.named_modules())
    marked = [
        name for name, module in modules.items() if isinstance(module, GradientCheckpointingLayer)
    ]
    # Groups of layers may be marked too.
    names = [name for name in marked if not any(name.startswith(f"{outer}.") for outer in marked)]
    lists = {name: module for name, module in modules.items() if isinstance(module, nn.ModuleList)}
    # Families without gradient checkpointing mark no layer.
    if not names and lists:
        longest = max(lists, key=lambda name: len(lists[name]))
        names = [f"{longest}.{index}" for index in range(len(lists[longest]))]
    if not names:
        raise ModelError(f"{type(model).__name__}: no list of layers found")
    return [(name, modules[name]) for name in names]


@contextmanager
def recorded_states(model: PreTrainedModel) -> Iterator[list[Tensor]]:
    """Record the embeddings that the first layer reads, then the states after each layer."""
    states: list[Tensor] = []

    def before(_module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        if not states:
            states.append(inputs[0] if inputs else options["hidden_states"])

    def after(_module: nn.Module, _inputs: Any, output: Any) -> None:
        states.append(output if isinstance(output, Tensor) else output[0])

    layers = [layer for _, layer in transformer_layers(model)]
    hooks = [layers[0].register_forward_pre_hook(before, with_kwargs=True)]
    hooks += [layer.register_forward_hook(after) for layer in layers]
    try:
        yield states
    finally:
        for hook in hooks:
            hook.remove()


def compile_layers(model: PreTrainedModel, *, backend: str = "inductor") -> None:
    """Compile the layers of a model in place, one at a time: equal layers share one graph."""
    # The first pass of each shape is slow; shapes are static, except for the numbers of documents
    # and predicted tokens.
    # Parameter names do not change. Code that hooks into layers or reads other shapes once should
    # run `uncompiled`. The model is in its compute precision, on its device.
    layers = [
        module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)
    ]
    if not layers:
        raise ModelError(f"{type(model).__name__}: no layers to compile; set compile: false")
    # Layers are compiled in the first pass. A missing compiler should be reported before that.
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


def recompute_activations(model: PreTrainedModel) -> None:
    """Make each layer store only its input and recompute the rest in the backward pass."""
    # Results are bitwise the same, including dropout. It applies to training only; evaluation
    # stores no activations anyway.
    # Reference: Chen et al. 2016, "Training deep nets with sublinear memory cost",
    # arXiv:1604.06174.
    if not model.supports_gradient_checkpointing:
        raise ModelError(
            f"{type(model).__name__} does not support activation checkpointing; set "
            "activation_checkpointing: false, and max_tokens_per_pass to save memory"
        )
    # transformers 5.2x renamed this; the old name warns there.
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": False})


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
    """Prevent values that differ between batches from creating new graphs."""
    if "cu_seqlens" not in options:
        return inputs, options
    for name in ("cu_seqlens", "predicted"):
        if name in options:
            # `maybe`: `mark_dynamic` is an error where torch has to fix a size, such as 1.
            torch._dynamo.maybe_mark_dynamic(options[name], 0)
    # The kernels use the longest segment only as a bound, so the row length serves as well.
    return inputs, {**options, "max_seqlen": options["input_ids"].shape[1]}


def narrow_last_layer(model: PreTrainedModel) -> None:
    """Let the body of a EuroBERT model take `predicted`; other models do not change."""
    # `predicted` is int64 [num_predicted], ascending positions in the flattened rows. With it, the
    # body returns their final states only, [1, num_predicted, hidden_size].
    if isinstance(body := model.base_model, EuroBertModel):
        body.layers[-1].__class__ = _NarrowLayer


def is_narrow(model: PreTrainedModel) -> bool:
    """Return whether a model's body takes `predicted`."""
    body = model.base_model
    return isinstance(body, EuroBertModel) and isinstance(body.layers[-1], _NarrowLayer)


class _NarrowLayer(EuroBertDecoderLayer):
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, hidden_states: Tensor, *, predicted: Tensor | None = None, **options: Any
    ) -> Tensor:
        if predicted is None:
            return super().forward(hidden_states, **options)
        # All tokens are keys here. Behind the last attention, no token reads another one's state,
        # so the MLP can leave out those without a label.
        attended, *_ = self.self_attn(self.input_layernorm(hidden_states), **options)
        read = (hidden_states + attended).flatten(0, -2).index_select(0, predicted)[None]
        return read + self.mlp(self.post_attention_layernorm(read))
