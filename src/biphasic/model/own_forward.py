"""Hidden states against transformers' own forward, on texts longer than every window.

A family may make its windows by masks alone, which packed rows do without, or count over a row what
it should count over a document. So a few documents are read in rows that they share, and again one
by one by transformers' own code, with the attention that it writes out. Windows are too long to
exceed at little cost: they are compared between two other models with short ones, which share all
weights.
"""

from __future__ import annotations

import inspect
from copy import deepcopy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from biphasic.data.packing import lay_out
from biphasic.errors import ModelError
from biphasic.model.directions import open_both_ways
from biphasic.model.forward import batching_of, hidden_states, padded_states
from biphasic.model.reading import loading
from biphasic.seeds import stream

_TOLERANCE = 1e-3
"""Of a token's states, in fp32: rounding stays far below, and a wrong window far above."""
_LENGTHS = (4, 12)
_ROW_LENGTH = 18  # both documents, and padding
_WINDOW = 4
# ModernBERT's `local_attention` follows from its `sliding_window`; Llama 4 scales its queries anew
# every `floor_scale` positions.
_WINDOWS = ("sliding_window", "attention_chunk_size", "floor_scale")
_DRAWS = 3

Documents = list[NDArray[np.int64]]


@torch.no_grad()
def check_states(model: PreTrainedModel, *, causal: bool) -> None:
    """Compare the hidden states of a few documents: together, alone, and by transformers' own code.

    Its own forward is asked in the direction that is needed, or else in the one that it has.

    Args:
        model: In fp32, in evaluation mode; for packed rows or for padded ones.
        causal: The direction that is needed.

    Raises:
        ModelError: They differ.
    """
    ways = "" if batching_of(model) == "padded" else _ON_PACKED_ROWS
    difference = _difference(model, model, causal=causal)
    if not difference <= _TOLERANCE:
        raise ModelError(
            f"{type(model).__name__}: padding changes hidden states, or other documents of a row "
            f"do, by {difference:.1e} of their size{ways}"
        )
    theirs, own_causal = _own_forward(model, causal=causal)
    if own_causal and batching_of(model) == "padded":
        raise ModelError(
            f"{type(model).__name__}: stays causal; this model family cannot be used as an encoder"
        )
    ours = _rebuilt(model, model.config._attn_implementation)
    difference = _difference(ours, theirs, causal=own_causal)
    if not difference <= _TOLERANCE:
        short = [name for name in _WINDOWS if getattr(model.config, name, None) is not None]
        windows = f" beyond a window ({', '.join(short)})" if short else ""
        raise ModelError(
            f"{type(model).__name__}: hidden states{windows} differ from those of transformers' "
            f"own forward by {difference:.1e} of their size{ways}"
        )


_ON_PACKED_ROWS = (
    "; so it cannot read packed rows (fine-tuning and scores can do with `batching: padded`)"
)


def probe_tokens(model: PreTrainedModel, count: int, *, draw: int = 0) -> NDArray[np.int64]:
    """Draw token ids, none of them padding: some families count positions by that."""
    vocab_size = model.config.vocab_size
    draws = stream("contract", draw).random_raw(count) % np.uint64(vocab_size)
    tokens = draws.astype(np.int64)
    tokens[tokens == pad_id(model)] = (pad_id(model) + 1) % vocab_size
    return tokens


def pad_id(model: PreTrainedModel) -> int:
    """Return the token that fills the rows of a probe."""
    return getattr(model.config, "pad_token_id", None) or 0


def _difference(ours: PreTrainedModel, theirs: PreTrainedModel, *, causal: bool) -> float:
    """Return how far states are from those of documents alone: the largest of a token.

    A router may send a token to another expert because of rounding, but hardly in every draw.
    """
    least = float("inf")
    for draw in range(_DRAWS):
        documents = _documents(ours, draw)
        together = _together(ours, documents, causal=causal)
        alone = torch.cat([_alone(theirs, document, causal=causal) for document in documents])
        size = alone.norm(dim=-1).clamp(min=1e-6)
        least = min(least, float(((together - alone).norm(dim=-1) / size).max()))
        if least <= _TOLERANCE:
            break
    return least


def _documents(model: PreTrainedModel, draw: int) -> Documents:
    """Draw two documents that hold the mask token in different shares."""
    tokens = probe_tokens(model, sum(_LENGTHS), draw=draw)
    mask_id = getattr(model.config, "mask_token_id", None)
    if mask_id is not None and mask_id < model.config.vocab_size:
        tokens[[1, 6, 9]] = mask_id
    return np.split(tokens, np.cumsum(_LENGTHS)[:-1])


def _together(model: PreTrainedModel, documents: Documents, *, causal: bool) -> Tensor:
    if batching_of(model) == "padded":
        states, spans = padded_states(model, documents, pad_id=pad_id(model))
    else:
        batch = lay_out(documents, [[0, 1]], row_length=_ROW_LENGTH, pad_id=pad_id(model))
        states, spans = hidden_states(model, batch, causal=causal), batch.spans
    return torch.cat([states[slice(*span)] for span in spans.tolist()])


def _alone(model: PreTrainedModel, document: NDArray[np.int64], *, causal: bool) -> Tensor:
    if batching_of(model) == "padded":
        return padded_states(model, [document], pad_id=pad_id(model))[0]
    batch = lay_out([document], [[0]], row_length=len(document), pad_id=pad_id(model))
    return hidden_states(model, batch, causal=causal)


def _own_forward(model: PreTrainedModel, *, causal: bool) -> tuple[PreTrainedModel, bool]:
    """Return a model as transformers runs it, and whether it sees earlier tokens alone."""
    theirs = _rebuilt(model, "eager", opens=not causal)
    if _is_causal(theirs) == causal:
        return theirs, causal
    return _rebuilt(model, "eager", opens=causal), not causal


def _is_causal(theirs: PreTrainedModel) -> bool:
    document = _documents(theirs, 0)[-1]
    changed = document.copy()
    changed[-1] = probe_tokens(theirs, 1, draw=_DRAWS)[0]
    before, after = (_alone(theirs, each, causal=False)[:-1] for each in (document, changed))
    return bool((before - after).norm() <= 1e-5 * before.norm())


def _rebuilt(
    model: PreTrainedModel, implementation: str | None, *, opens: bool = False
) -> PreTrainedModel:
    """Return the body of a model with short windows and another attention; it shares the weights.

    Args:
        model: It stays as it is.
        implementation: Of attention, by transformers' name.
        opens: Whether a decoder is to see both ways.
    """
    body = model.base_model
    config = deepcopy(body.config)
    for name in _WINDOWS:
        if getattr(config, name, None) is not None:
            setattr(config, name, _WINDOW)
    if opens:
        open_both_ways(config)
    config.use_cache = False
    kind = type(body)
    options = {"attn_implementation": implementation, "dtype": torch.float32}
    if "add_pooling_layer" in inspect.signature(kind).parameters:
        options["add_pooling_layer"] = False
    with loading(kind.__name__), torch.random.fork_rng(devices=[]), torch.device("meta"):
        other = kind._from_config(config, **options)
    for name, module in other.named_modules():
        source = body.get_submodule(name)
        for key in module._parameters:
            module._parameters[key] = source._parameters[key]
        for key in module._buffers:
            module._buffers[key] = source._buffers[key]
        for key, value in vars(module).items():
            if isinstance(value, Tensor):  # of rotary positions
                setattr(module, key, getattr(source, key))
    return other.eval()
