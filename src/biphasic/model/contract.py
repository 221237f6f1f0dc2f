"""The attention contract, probed on the real model: who may see whom, layer by layer.

`config.is_causal = False` makes many decoders bidirectional, but not all of them everywhere; a
model that stays causal in some layers would be compared under a false name. So before training, at
each phase switch and at export, every layer is disturbed at one place and watched at others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from biphasic.data.packing import PackedBatch, pack_sequences
from biphasic.errors import ModelError
from biphasic.model.forward import hidden_states
from biphasic.seeds import stream

_LENGTH = 6  # of each probe document: within any sliding window
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@dataclass(frozen=True)
class _Disturbance:
    """Noise added to one layer's input at given positions of the only row."""

    layer: nn.Module
    positions: slice


@torch.no_grad()
def check_contract(model: PreTrainedModel, *, causal: bool) -> None:
    """Probe causality or bidirectionality, document isolation and padding invariance.

    Args:
        model: Loaded by `biphasic.model.build`.
        causal: What the phase to come needs.

    Raises:
        ModelError: A layer sees what it must not, or does not see what it must; it is named.
    """
    was_training = model.training
    model.eval()
    try:
        probe = _probe_batch(model)
        for name, layer in _layers(model):
            _check_layer(model, probe, name, layer, causal=causal)
        _check_padding(model, causal=causal)
    finally:
        model.train(was_training)


def _check_layer(
    model: PreTrainedModel, probe: PackedBatch, name: str, layer: nn.Module, *, causal: bool
) -> None:
    """Disturb what follows the first document, then the document's last token."""
    first, others = slice(0, _LENGTH), slice(_LENGTH, None)
    last, earlier = slice(_LENGTH - 1, _LENGTH), slice(0, _LENGTH - 1)
    calm = _layer_output(model, probe, layer, causal=causal)
    after_others, after_last = (
        _layer_output(
            model, probe, layer, causal=causal, disturbance=_Disturbance(layer, positions)
        )
        for positions in (others, last)
    )
    if not torch.equal(calm[first], after_others[first]):
        raise ModelError(f"{name}: tokens see other documents or the padding of their row")
    # Backwards too: a causal layer leaks from a document to those after it alone.
    if not torch.equal(calm[others], after_last[others]):
        raise ModelError(f"{name}: tokens see other documents of their row")
    changed = (calm[earlier] != after_last[earlier]).any(-1)
    if causal and bool(changed.any()):
        raise ModelError(f"{name}: sees later tokens although the objective is causal")
    if not causal and not bool(changed.all()):
        raise ModelError(
            f"{name}: stays causal although the objective is bidirectional; this model "
            "family cannot be trained as an encoder"
        )


def _check_padding(model: PreTrainedModel, *, causal: bool) -> None:
    tokens = _tokens(model, _LENGTH)
    alone = hidden_states(model, _pack(model, [tokens], _LENGTH), causal=causal)
    padded = hidden_states(model, _pack(model, [tokens], 2 * _LENGTH), causal=causal)[:_LENGTH]
    difference = float((alone - padded).abs().max() / alone.abs().max())
    if not difference <= _TOLERANCE[alone.dtype]:
        raise ModelError(
            f"{type(model).__name__}: padding changes hidden states by {difference:.1e}"
        )


def _layers(model: PreTrainedModel) -> list[tuple[str, nn.Module]]:
    """Return the transformer layers: the members of the longest module list of the body."""
    lists = {
        name: module
        for name, module in model.base_model.named_modules()
        if isinstance(module, nn.ModuleList)
    }
    if not lists:
        raise ModelError(f"{type(model).__name__}: no list of layers was found to probe")
    name = max(lists, key=lambda key: len(lists[key]))
    return [(f"layer {name}.{index}", layer) for index, layer in enumerate(lists[name])]


def _layer_output(
    model: PreTrainedModel,
    batch: PackedBatch,
    layer: nn.Module,
    *,
    causal: bool,
    disturbance: _Disturbance | None = None,
) -> Tensor:
    """Return the output of one layer for the only row: [row_length, hidden_size]."""
    captured: list[Tensor] = []

    def disturb(_module: nn.Module, inputs: tuple[Tensor, ...], options: dict) -> tuple:
        if disturbance is None:
            return inputs, options
        hidden = (inputs[0] if inputs else options["hidden_states"]).clone()
        noise = torch.linspace(-1, 1, hidden.shape[-1], dtype=hidden.dtype, device=hidden.device)
        hidden[0, disturbance.positions] += noise * hidden.abs().mean().clamp(min=1.0)
        if inputs:
            return (hidden, *inputs[1:]), options
        return inputs, {**options, "hidden_states": hidden}

    def capture(_module: nn.Module, _inputs: object, output: Tensor | tuple[Tensor, ...]) -> None:
        captured.append(output[0] if isinstance(output, tuple) else output)

    hooks = [
        layer.register_forward_pre_hook(disturb, with_kwargs=True),
        layer.register_forward_hook(capture),
    ]
    try:
        hidden_states(model, batch, causal=causal)
    finally:
        for hook in hooks:
            hook.remove()
    return captured[0][0]


def _probe_batch(model: PreTrainedModel) -> PackedBatch:
    tokens = _tokens(model, 2 * _LENGTH)
    return _pack(model, [tokens[:_LENGTH], tokens[_LENGTH:]], 2 * _LENGTH + 2)


def _tokens(model: PreTrainedModel, count: int) -> np.ndarray:
    draws = stream("contract", 0).random_raw(count) % np.uint64(model.config.vocab_size)
    return draws.astype(np.int64)


def _pack(model: PreTrainedModel, sequences: list[np.ndarray], row_length: int) -> PackedBatch:
    return pack_sequences(sequences, row_length=row_length, pad_id=model.config.pad_token_id or 0)
