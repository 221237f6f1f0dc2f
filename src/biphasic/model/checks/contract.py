"""Probes the attention contract on the real model: which tokens attend to which, layer by layer.

`config.is_causal = False` makes many decoders bidirectional, but not all in every layer, and
a model with causal layers would be reported wrongly. Each layer is therefore probed with gradients:
a token attends to another if its output depends on the other's input. A weight of zero gives a
gradient of exactly zero and any other does not, so the result does not depend on rounding, in any
precision and for any weights.

A model in fp32 must also reproduce the states of transformers' own forward (`own_forward.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from biphasic.data.packing import lay_out
from biphasic.errors import ModelError
from biphasic.model.checks.own_forward import check_states, code_of, pad_id, probe_tokens
from biphasic.model.compute.forward import (
    activation_dtype,
    batching_of,
    first_pass,
    hidden_states,
    padded_states,
    probing,
)
from biphasic.model.compute.layers import transformer_layers
from biphasic.model.loading.build import load_encoder

_LENGTH = 4  # of each probe document
_TOKENS = 2 * _LENGTH  # tokens of a probe row: two documents if packed; if padded, the two form one
_ROW_LENGTH = _TOKENS + 2  # with two tokens of padding
_DOCUMENTS = torch.arange(_TOKENS) // _LENGTH

_passed: set[tuple[object, ...]] = set()  # weights and code that this process has probed


@probing
def check_contract(model: PreTrainedModel, *, causal: bool, weights: str | None = None) -> None:
    """Probe causality or bidirectionality, document isolation, padding, and hidden states."""
    # Padded rows hold one document each, and are never causal. In half precision only layers are
    # probed, not states. `weights` is the identity of pretrained weights, which a process probes
    # once with the same code.
    passed = weights, activation_dtype(model), *code_of(model, causal=causal)
    if passed in _passed:
        return
    was_training = model.training
    model.eval()
    try:
        with first_pass(model):
            # Some models are bidirectional only if a mask is given.
            for has_padding in (True,) if batching_of(model) == "packed" else (True, False):
                for name, sees in _sights(model, causal=causal, has_padding=has_padding):
                    _check_layer(name, sees, model, causal=causal, has_padding=has_padding)
            if activation_dtype(model) == torch.float32:
                check_states(model, causal=causal)
        if weights is not None:
            _passed.add(passed)
    finally:
        model.train(was_training)


def load_checked_encoder(
    folder: Path | str,
    place: Callable[[PreTrainedModel], PreTrainedModel] = lambda model: model,
    *,
    causal: bool = False,
) -> PreTrainedModel:
    """Load an encoder for packed rows or, if it fails the checks, for padded rows."""
    # `place` moves the model to its device.
    refusals: list[ModelError] = []
    for batching in ("packed",) if causal else ("packed", "padded"):
        try:
            model = place(load_encoder(folder, batching=batching))
            check_contract(model, causal=causal)
        except ModelError as error:
            refusals.append(error)
        else:
            return model
    packed, padded = str(refusals[0]), str(refusals[-1])
    # Show both: either may name the layer.
    both = packed if padded == packed else f"{padded}; on packed rows: {packed}"
    raise type(refusals[-1])(both)


def _check_layer(
    name: str, sees: Tensor, model: PreTrainedModel, *, causal: bool, has_padding: bool
) -> None:
    """Check `sees`, bool [tokens of a row, row_length]: whether token i attends to token j."""
    among = sees[:, :_TOKENS]
    if not bool(among.diagonal().all()):
        raise ModelError(f"{name}: tokens do not attend to themselves; it cannot be probed")
    is_packed = batching_of(model) == "packed"
    if is_packed and bool((among & (_DOCUMENTS[:, None] != _DOCUMENTS)).any()):
        raise ModelError(f"{name}: tokens attend to other documents of their row")
    if bool(sees[:, _TOKENS:].any()):
        raise ModelError(f"{name}: tokens attend to the padding of their row")
    if causal and bool(among.triu(1).any()):
        raise ModelError(f"{name}: attends to later tokens although the objective is causal")
    # Which later ones depends on windows, and on weights that may be zero.
    documents = among.view(2, _LENGTH, 2, _LENGTH).diagonal(dim1=0, dim2=2).movedim(-1, 0)
    if not causal and any(map(_is_causal, documents if is_packed else [among])):
        reason = (
            "although the objective is bidirectional; this model family cannot be trained"
            if has_padding
            else "where no row is padded; this model family cannot be used"
        )
        raise ModelError(f"{name}: stays causal {reason} as an encoder")


def _is_causal(among: Tensor) -> bool:
    """Return whether tokens attend only to earlier ones of their document."""
    return bool(among.tril(-1).any()) and not bool(among.triu(1).any())


def _sights(model: PreTrainedModel, *, causal: bool, has_padding: bool) -> list[tuple[str, Tensor]]:
    """Return, per layer, its name and what its tokens attend to, bool [tokens, row_length]."""
    # All rows are equal, and row i probes token i: one pass covers all tokens and layers.
    tokens = probe_tokens(model, _TOKENS + _ROW_LENGTH)
    document, longer = tokens[:_TOKENS], tokens[_TOKENS:]
    if batching_of(model) == "padded":
        # One row more than tokens: forces padding, or distinguishes the two axes.
        sequences = [*[document] * _TOKENS, longer if has_padding else document]
        shape = len(sequences), max(map(len, sequences))
    else:
        sequences, shape = [*document.reshape(2, _LENGTH)] * _TOKENS, (_TOKENS, _ROW_LENGTH)
    probes = [
        _LayerProbe(f"layer {name}", layer, shape) for name, layer in transformer_layers(model)
    ]
    try:
        with torch.inference_mode(False), torch.enable_grad():
            if batching_of(model) == "padded":
                padded_states(model, sequences, pad_id=pad_id(model))
            else:
                rows = np.arange(len(sequences)).reshape(_TOKENS, 2).tolist()
                batch = lay_out(sequences, rows, row_length=_ROW_LENGTH, pad_id=pad_id(model))
                hidden_states(model, batch, causal=causal)
    finally:
        for probe in probes:
            probe.remove()
    unused = [probe.name for probe in probes if not probe.sights]
    if unused:
        raise ModelError(f"{unused[0]}: was not run, so it cannot be probed")
    return [(probe.name, sees) for probe in probes for sees in probe.sights]


class _LayerProbe:
    """Cuts the graph before and after a layer, and takes the gradient in between."""

    def __init__(self, name: str, layer: nn.Module, shape: tuple[int, int]) -> None:
        """Hook into a layer that will be called with `shape` rows and tokens."""
        self.name, self.sights = name, list[Tensor]()
        self._shape = shape
        self._input = torch.empty(0)
        self._had_gradients = True
        self._hooks = [
            layer.register_forward_pre_hook(self._before, with_kwargs=True),
            layer.register_forward_hook(self._after),
        ]

    def remove(self) -> None:
        """Remove the hooks from the layer."""
        for hook in self._hooks:
            hook.remove()

    def _before(
        self, _module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self._had_gradients = torch.is_grad_enabled()
        states = inputs[0] if inputs else options.get("hidden_states")
        if not isinstance(states, Tensor):
            raise ModelError(f"{self.name}: takes no hidden states, so it cannot be probed")
        self._input = states.detach().requires_grad_()
        torch.set_grad_enabled(True)  # a model may run some layers without gradients
        given = self._input.clone()  # the layer may change it in place
        if inputs:
            return (given, *inputs[1:]), options
        return inputs, {**options, "hidden_states": given}

    def _after(self, _module: nn.Module, _inputs: object, output: Any) -> Any:
        states, *others = output if isinstance(output, tuple | list) else (output,)
        by_token = self._by_token(states)
        numbers = torch.arange(_TOKENS, device=states.device)
        asked = by_token[numbers, numbers]
        total = (asked * torch.linspace(-1, 1, asked.shape[-1], device=states.device)).sum()
        (gradient,) = torch.autograd.grad(total, self._input, materialize_grads=True)
        gradient = self._by_token(gradient)[:_TOKENS]
        if not bool(gradient.isfinite().all()):
            raise ModelError(
                f"{self.name}: its states are not finite; the weights are damaged, or have "
                "diverged in training: start again with a lower learning rate"
            )
        self.sights.append(gradient.ne(0).any(-1).cpu())
        torch.set_grad_enabled(self._had_gradients)
        if isinstance(output, Tensor):
            return states.detach()
        return type(output)([states.detach(), *others])

    def _by_token(self, states: Tensor) -> Tensor:
        """Return states as [rows, row_length, width]."""
        # A few families order axes differently, have an additional one, or add padding.
        sizes, (num_rows, row_length) = list(states.shape), self._shape
        rows = sizes.index(num_rows) if num_rows in sizes else None
        tokens = (axis for axis, size in enumerate(sizes) if axis != rows and size >= row_length)
        if rows is None or len(sizes) < 3:
            raise ModelError(f"{self.name}: states of shape {sizes} cannot be probed")
        return states.movedim((rows, next(tokens)), (0, 1)).flatten(2)
