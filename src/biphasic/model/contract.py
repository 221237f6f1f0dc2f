"""The attention contract, probed on the real model: who may see whom, layer by layer.

`config.is_causal = False` makes many decoders bidirectional, but not all of them everywhere; a
model that stays causal in some layers would be compared under a false name. So before training, at
each phase switch and at export, every layer is disturbed at one place and watched at others.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from biphasic.data.packing import pack_sequences
from biphasic.errors import ModelError
from biphasic.model.forward import batching_of, hidden_states, padded_states
from biphasic.model.reading import probing
from biphasic.seeds import stream

_LENGTH = 6  # of each probe document: within any sliding window
# The probe's first row: two documents and two tokens of padding. Where sequences are padded, not
# packed, the two are one document, and a second row makes the padding necessary.
_FIRST, _SECOND = slice(0, _LENGTH), slice(_LENGTH, 2 * _LENGTH)
_PADDING = slice(2 * _LENGTH, 2 * _LENGTH + 2)
_LAST_OF_FIRST = slice(_LENGTH - 1, _LENGTH)
_NOWHERE = slice(0)
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@probing
@torch.no_grad()
def check_contract(model: PreTrainedModel, *, causal: bool) -> None:
    """Probe causality or bidirectionality, document isolation and padding invariance.

    Args:
        model: Loaded by `biphasic.model.build`, for packed rows or for padded ones, which hold
            one document each.
        causal: What the phase to come needs; False for padded rows.

    Raises:
        ModelError: A layer sees what it must not, or does not see what it must; it is named.
    """
    was_training = model.training
    model.eval()
    try:
        for name, layer in _layers(model):

            def output(noisy: slice, layer: nn.Module = layer) -> Tensor:
                return _layer_output(model, layer, noisy, causal=causal)

            is_packed = batching_of(model) == "packed"
            _check_layer(name, output, causal=causal, is_packed=is_packed)
            if not is_packed and not causal:
                _check_without_padding(name, model, layer)
        _check_padding(model, causal=causal)
    finally:
        model.train(was_training)


def _check_layer(
    name: str, output: Callable[[slice], Tensor], *, causal: bool, is_packed: bool
) -> None:
    """Disturb the second document, the last token of the first and the padding, one by one.

    Args:
        name: Of the layer, for errors.
        output: Gives the layer's output, [row_length, hidden_size], with noise in some of its
            input.
        causal: What is expected.
        is_packed: Whether the documents are to be kept apart.
    """
    calm, after_second, after_last, after_padding = map(
        output, (_NOWHERE, _SECOND, _LAST_OF_FIRST, _PADDING)
    )
    # Both ways: a causal layer leaks from a document to those after it alone.
    isolated = torch.equal(calm[_FIRST], after_second[_FIRST])
    isolated = isolated and torch.equal(calm[_SECOND], after_last[_SECOND])
    if is_packed and not isolated:
        raise ModelError(f"{name}: tokens see other documents of their row")
    if not torch.equal(calm[: _PADDING.start], after_padding[: _PADDING.start]):
        raise ModelError(f"{name}: tokens see the padding of their row")
    changed = (calm != after_last)[: _LAST_OF_FIRST.start].any(-1)
    if causal and bool(changed.any()):
        raise ModelError(f"{name}: sees later tokens although the objective is causal")
    if not causal and not bool(changed.all()):
        raise ModelError(
            f"{name}: stays causal although the objective is bidirectional; this model "
            "family cannot be trained as an encoder"
        )


def _check_without_padding(name: str, model: PreTrainedModel, layer: nn.Module) -> None:
    """Look again where nothing is padded: some models see both ways only where a mask says so."""
    calm, after_last = (
        _layer_output(model, layer, noisy, causal=False, has_padding=False)
        for noisy in (_NOWHERE, _LAST_OF_FIRST)
    )
    if not bool((calm != after_last)[: _LAST_OF_FIRST.start].any(-1).all()):
        raise ModelError(
            f"{name}: stays causal where no row is padded; this model family cannot be used as an "
            "encoder"
        )


def _check_padding(model: PreTrainedModel, *, causal: bool) -> None:
    tokens = _tokens(model, 3 * _LENGTH)
    short, long = tokens[:_LENGTH], tokens[_LENGTH:]
    alone = _first_states(model, [short], row_length=_LENGTH, causal=causal)
    padded = _first_states(model, [short, long], row_length=2 * _LENGTH, causal=causal)
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
    layer: nn.Module,
    noisy: slice,
    *,
    causal: bool,
    has_padding: bool = True,
) -> Tensor:
    """Return one layer's output for the probe's first row, with noise in some of its input."""
    captured: list[Tensor] = []

    def disturb(_module: nn.Module, inputs: tuple[Tensor, ...], options: dict) -> tuple:
        hidden = (inputs[0] if inputs else options["hidden_states"]).clone()
        noise = torch.linspace(-1, 1, hidden.shape[-1], dtype=hidden.dtype, device=hidden.device)
        hidden[0, noisy] += noise * hidden.abs().mean().clamp(min=1.0)
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
        _run_probe(model, causal=causal, has_padding=has_padding)
    finally:
        for hook in hooks:
            hook.remove()
    return captured[0][0]


def _run_probe(model: PreTrainedModel, *, causal: bool, has_padding: bool) -> None:
    tokens = _tokens(model, 2 * _LENGTH + _PADDING.stop)
    documents, longer = tokens[: 2 * _LENGTH], tokens[2 * _LENGTH :]
    if batching_of(model) == "padded":
        sequences = [documents, longer] if has_padding else [documents]
        padded_states(model, sequences, pad_id=_pad_id(model))
        return
    pair = [documents[_FIRST], documents[_SECOND]]
    batch = pack_sequences(pair, row_length=_PADDING.stop, pad_id=_pad_id(model))
    hidden_states(model, batch, causal=causal)


def _first_states(
    model: PreTrainedModel, sequences: list[np.ndarray], *, row_length: int, causal: bool
) -> Tensor:
    """Return the states of the first of some sequences, each of which has a row to itself."""
    if batching_of(model) == "padded":
        states, spans = padded_states(model, sequences, pad_id=_pad_id(model))
    else:
        batch = pack_sequences(sequences, row_length=row_length, pad_id=_pad_id(model))
        states, spans = hidden_states(model, batch, causal=causal), batch.spans
    return states[slice(*spans[0])]


def _tokens(model: PreTrainedModel, count: int) -> np.ndarray:
    draws = stream("contract", 0).random_raw(count) % np.uint64(model.config.vocab_size)
    return draws.astype(np.int64)


def _pad_id(model: PreTrainedModel) -> int:
    return model.config.pad_token_id or 0
