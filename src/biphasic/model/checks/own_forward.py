"""Compares hidden states with transformers' own forward, on texts longer than every window.

A family may implement windows only with masks, which packed rows do not use, or count over a row
what it should count over a document. Two documents are therefore read in a shared row, one by one,
and by transformers' eager attention. Published windows are too long to exceed cheaply, so the two
compared models have short windows; they share all weights.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from biphasic.data.packing import lay_out
from biphasic.errors import ModelError
from biphasic.model.compute.forward import batching_of, hidden_states, padded_states
from biphasic.model.loading.directions import open_both_ways
from biphasic.model.loading.reading import loading, without_pooler
from biphasic.seeds import stream

# For a token's states, in fp32. Rounding errors were 1e-6 in small models and 1e-5 in 30 layers
# with large weights; a window one token too wide gave at least 9e-4, before any training.
_TOLERANCE = 2e-4
_LENGTHS = (4, 12)
_ROW_LENGTH = 18  # both documents, and padding
_WINDOW = 4
# ModernBERT's `local_attention` follows from its `sliding_window`; Llama 4 rescales its queries
# every `floor_scale` positions.
_WINDOWS = ("sliding_window", "attention_chunk_size", "floor_scale")
_DRAWS = 3
_REMEDY = "; only `batching: padded` in the fine-tuning protocol can read it"

Documents = list[NDArray[np.int64]]

# Code that this process has compared with transformers' own, whatever the weights.
_equal_to_transformers: set[tuple[object, ...]] = set()


@torch.no_grad()
def check_states(model: PreTrainedModel, *, causal: bool) -> None:
    """Compare hidden states of a few documents: together, alone, and by transformers' own code."""
    # transformers runs in the required direction or, if it does not support it, in its own. Models
    # of the same class and configuration are compared with it once per process. The model is in
    # fp32, in evaluation mode.
    name, is_padded = type(model).__name__, batching_of(model) == "padded"
    difference = _difference(model, partial(_alone, model, causal=causal), causal=causal)
    if not difference <= _TOLERANCE:
        raise ModelError(
            f"{name}: padding or other documents of a row change hidden states by "
            f"{difference:.1e} of their size{'' if is_padded else _REMEDY}"
        )
    code = code_of(model, causal=causal)
    if code not in _equal_to_transformers:
        _compare_with_transformers(model, causal=causal)
        _equal_to_transformers.add(code)


def _compare_with_transformers(model: PreTrainedModel, *, causal: bool) -> None:
    name, is_padded = type(model).__name__, batching_of(model) == "padded"
    theirs, own_causal = _own_forward(model, causal=causal)
    if is_padded and own_causal:
        raise ModelError(f"{name}: stays causal; this model family cannot be used as an encoder")
    ours = _rebuilt(model, model.config._attn_implementation)
    difference = _difference(ours, partial(_together, theirs), causal=own_causal)
    if not difference <= _TOLERANCE:
        windows = [window for window in _WINDOWS if getattr(model.config, window, None) is not None]
        texts = f" of texts longer than {' or '.join(windows)}" if windows else ""
        raise ModelError(
            f"{name}: hidden states{texts} differ from those of transformers' own forward by "
            f"{difference:.1e} of their size{'' if is_padded else _REMEDY}"
        )


def code_of(model: PreTrainedModel, *, causal: bool) -> tuple[object, ...]:
    """Return what decides which code computes a model's states."""
    # The size of the vocabulary changes no code: training may add a mask token.
    settings = {**model.config.to_dict(), "vocab_size": None}
    implementation = model.config._attn_implementation
    text = json.dumps(settings, sort_keys=True, default=str)
    return type(model), text, implementation, str(model.device), batching_of(model), causal


def probe_tokens(model: PreTrainedModel, count: int, *, draw: int = 0) -> NDArray[np.int64]:
    """Draw token ids without padding, because some families count positions by it."""
    vocab_size = model.config.vocab_size
    draws = stream("contract", draw).random_raw(count) % np.uint64(vocab_size)
    tokens = draws.astype(np.int64)
    tokens[tokens == pad_id(model)] = (pad_id(model) + 1) % vocab_size
    return tokens


def pad_id(model: PreTrainedModel) -> int:
    """Return the token that pads the rows of a probe."""
    return getattr(model.config, "pad_token_id", None) or 0


def _difference(
    model: PreTrainedModel, reference: Callable[[Documents], Tensor], *, causal: bool
) -> float:
    """Return the largest difference of a token's states, documents read together, to others."""
    # It is relative to the norm of its states. Rounding may make a router choose another expert,
    # but hardly in every draw, so the minimum over draws counts.
    least = math.inf
    for draw in range(_DRAWS):
        documents = _documents(model, draw)
        expected = reference(documents)
        error = _together(model, documents, causal=causal) - expected
        share = error.norm(dim=-1) / expected.norm(dim=-1).clamp(min=1e-6)
        least = min(least, float(share.max()))  # NaN is ignored, and is no agreement
        if least <= _TOLERANCE:
            break
    return least


def _documents(model: PreTrainedModel, draw: int) -> Documents:
    """Draw two documents that contain different shares of the mask token."""
    tokens = probe_tokens(model, sum(_LENGTHS), draw=draw)
    mask_id = getattr(model.config, "mask_token_id", None)
    if mask_id is not None and mask_id < model.config.vocab_size:
        tokens[[1, 6, 9]] = mask_id
    return np.split(tokens, np.cumsum(_LENGTHS)[:-1])


def _together(model: PreTrainedModel, documents: Documents, *, causal: bool = False) -> Tensor:
    """Read documents in one packed row, or one padded batch; return their states in order."""
    if batching_of(model) == "padded":
        states, spans = padded_states(model, documents, pad_id=pad_id(model))
    else:
        batch = lay_out(documents, [[0, 1]], row_length=_ROW_LENGTH, pad_id=pad_id(model))
        states, spans = hidden_states(model, batch, causal=causal), batch.spans
    return torch.cat([states[slice(*span)] for span in spans.tolist()])


def _alone(model: PreTrainedModel, documents: Documents, *, causal: bool) -> Tensor:
    """Read documents one by one, without padding."""
    if batching_of(model) == "padded":
        return torch.cat([padded_states(model, [document], pad_id=0)[0] for document in documents])
    batches = [
        lay_out([document], [[0]], row_length=len(document), pad_id=0) for document in documents
    ]
    return torch.cat([hidden_states(model, batch, causal=causal) for batch in batches])


def _own_forward(model: PreTrainedModel, *, causal: bool) -> tuple[PreTrainedModel, bool]:
    """Return a model as transformers runs it, and whether it is causal."""
    theirs = _rebuilt(model, "eager", opens=not causal)
    if _is_causal(theirs) == causal:
        return theirs, causal
    return _rebuilt(model, "eager", opens=causal), not causal


def _is_causal(theirs: PreTrainedModel) -> bool:
    """Return whether a document's last token affects only its own state."""
    documents = _documents(theirs, 0)
    changed = [document.copy() for document in documents]
    # For some sizes of the vocabulary, the first draw is the token itself.
    others = probe_tokens(theirs, 8, draw=_DRAWS)
    changed[-1][-1] = others[others != documents[-1][-1]][0]
    before, after = (_together(theirs, texts)[:-1] for texts in (documents, changed))
    return bool((before - after).norm() <= 1e-5 * before.norm())


def _rebuilt(
    model: PreTrainedModel, implementation: str | None, *, opens: bool = False
) -> PreTrainedModel:
    """Return a model's body with short windows and another attention; it shares the weights."""
    body = cast(PreTrainedModel, model.base_model)
    config = deepcopy(body.config)
    for name in _WINDOWS:
        if getattr(config, name, None) is not None:
            setattr(config, name, _WINDOW)
    if opens:
        open_both_ways(config)
    config.use_cache = False
    kind: Any = type(body)
    options = {"attn_implementation": implementation, "dtype": torch.float32}
    options |= without_pooler(kind)
    with loading(kind.__name__), torch.random.fork_rng(devices=[]), torch.device("meta"):
        other = kind._from_config(config, **options)
    for name, module in other.named_modules():
        source = body.get_submodule(name)
        for key in module._parameters:
            module._parameters[key] = source._parameters[key]
        for key in module._buffers:
            module._buffers[key] = source._buffers[key]
        for key, value in vars(module).items():
            if isinstance(value, Tensor):  # rotary positions
                setattr(module, key, getattr(source, key))
    return other.eval()
