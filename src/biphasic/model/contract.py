"""Contract of a model: its input limits, and which tokens attend to which, layer by layer.

`config.is_causal = False` makes many decoders bidirectional, but not all in every layer, and
a model with causal layers would be reported wrongly. Each layer is therefore probed with gradients:
a token attends to another if its output depends on the other's input. A weight of zero gives a
gradient of exactly zero and any other does not, so the result does not depend on rounding, in any
precision and for any weights.

A model in fp32 must also reproduce the states of transformers' own forward, on texts longer than
every window. A family may implement windows only with masks, which packed rows do not use, or count
over a row what it should count over a document. Two documents are therefore read in a shared row,
one by one, and by transformers' eager attention. Published windows are too long to exceed cheaply,
so the two compared models have short windows; they share all weights.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from biphasic.data.packing import lay_out
from biphasic.errors import ModelError, ModelFilesError, reading
from biphasic.files import read_json_object
from biphasic.model.compute.forward import (
    activation_dtype,
    batching_of,
    first_pass,
    first_position,
    hidden_states,
    padded_states,
    probing,
)
from biphasic.model.compute.layers import transformer_layers
from biphasic.model.loading.build import empty_body, load_encoder
from biphasic.model.loading.configurations import open_both_ways
from biphasic.model.loading.reading import loading, without_pooler
from biphasic.seeds import stream

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
        # A layer whose gradient is zero everywhere would otherwise pass all checks below.
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
        # Callers that only evaluate have switched gradients off, and a probe needs them.
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
        states = self._input.clone()  # the layer may change it in place
        if inputs:
            return (states, *inputs[1:]), options
        return inputs, {**options, "hidden_states": states}

    def _after(self, _module: nn.Module, _inputs: object, output: Any) -> Any:
        states, *others = output if isinstance(output, tuple | list) else (output,)
        by_token = self._by_token(states)
        numbers = torch.arange(_TOKENS, device=states.device)
        diagonal = by_token[numbers, numbers]
        # Unequal weights: the states of a new LayerNorm, with which some layers end, have a
        # constant sum, whose gradient is zero.
        total = (diagonal * torch.linspace(-1, 1, diagonal.shape[-1], device=states.device)).sum()
        # A layer that ignores its input has no gradient, which torch would report as an error.
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
            # The next layer starts a graph of its own, so each gradient shows what one layer does.
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


# For a token's states, in fp32. Rounding errors were 1e-6 in small models and 1e-5 in 30 layers
# with large weights; a window one token too wide gave at least 9e-4, before any training.
_TOLERANCE = 2e-4
# Read with windows of 4 tokens, the first document fits and the second is three times as long.
_LENGTHS = (4, 12)
_STATES_LENGTH = 18  # both documents, and padding
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
    # `not <=`, as NaN must be refused and is not larger than anything.
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
    # Some first copies of LLaMA have -1: no token.
    return max(getattr(model.config, "pad_token_id", None) or 0, 0)


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
        # ESM scales a row by its share of mask tokens. With equal shares, documents that change
        # each other through it would look isolated.
        tokens[[1, 6, 9]] = mask_id
    return np.split(tokens, np.cumsum(_LENGTHS)[:-1])


def _together(model: PreTrainedModel, documents: Documents, *, causal: bool = False) -> Tensor:
    """Read documents in one packed row, or one padded batch; return their states in order."""
    if batching_of(model) == "padded":
        states, spans = padded_states(model, documents, pad_id=pad_id(model))
    else:
        batch = lay_out(documents, [[0, 1]], row_length=_STATES_LENGTH, pad_id=pad_id(model))
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
    if _runs_causal(theirs) == causal:
        return theirs, causal
    return _rebuilt(model, "eager", opens=causal), not causal


def _runs_causal(theirs: PreTrainedModel) -> bool:
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
        # Only windows that the family has: setting another would change which code it runs.
        if getattr(config, name, None) is not None:
            setattr(config, name, _WINDOW)
    if opens:
        open_both_ways(config)
    config.use_cache = False
    kind: Any = type(body)
    options = {"attn_implementation": implementation, "dtype": torch.float32}
    options |= without_pooler(kind)
    # On `meta` a second model needs no memory; the loop below gives it the weights of the first.
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


# Default maximum input, even if a model supports more: the study's row length.
_MAX_INPUT_TOKENS = 2048

_LIMITS = "check the numbers in its config.json and tokenizer_config.json"


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Input limits of a model."""

    # Recommended maximum input in tokens, including special tokens: the lowest of its positions,
    # its authors' limit for sentences (`sentence_bert_config.json`), its tokenizer's limit, and
    # `_MAX_INPUT_TOKENS`.
    longest_input: int
    positions: int | None  # longest input that it has positions for; None without a limit
    num_embeddings: int  # number of tokens that it has embeddings for
    num_layers: int | None = None


def model_limits(folder: Path) -> ModelLimits:
    """Read a model's limits, without its weights."""
    with reading(folder, ModelFilesError, remedy=_LIMITS):
        body = empty_body(folder)
        num_embeddings = getattr(body.config, "vocab_size", None)
        if num_embeddings is None:
            raise ModelError(f"{folder}: config.json states no vocab_size")
        positions = getattr(body.config, "max_position_embeddings", None)
        # XLNet uses -1 for no limit.
        positions = positions - first_position(body) if positions and positions > 0 else None
        stated = [
            positions,
            _stated(folder / "sentence_bert_config.json", "max_seq_length"),
            tokenizer_limit(folder),
            _MAX_INPUT_TOKENS,
        ]
        longest_input = min(int(limit) for limit in stated if limit)
        num_layers = getattr(body.config, "num_hidden_layers", None)
        return ModelLimits(longest_input, positions, num_embeddings, num_layers)


def tokenizer_limit(folder: Path) -> int | None:
    """Return the longest input that a tokenizer states, in tokens; None if it states none."""
    stated = _stated(folder / "tokenizer_config.json", "model_max_length")
    return int(stated) if stated and stated < 1e9 else None  # 1e30 means unknown


def _stated(path: Path, name: str) -> float | None:
    return read_json_object(path).get(name) if path.is_file() else None
