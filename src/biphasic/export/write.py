"""Exports a model: read, write, check in a separate process, then rename into place.

An ONNX graph is made from the written folder, and checked against it.
"""

from __future__ import annotations

import copy
import logging
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from biphasic.errors import ModelError
from biphasic.export import ExportSettings, require_packages
from biphasic.export.card import Export, write_export_card
from biphasic.export.check import check_export, read_reference
from biphasic.export.hf import (
    Source,
    check_as,
    open_source,
    with_adapter,
    write_model,
    write_sentence_transformers,
    write_tokenizer,
)
from biphasic.export.output import find_made, new_folder, sign
from biphasic.files import BASE
from biphasic.locks import Say, sole_writer
from biphasic.model.compute.forward import Pooling, first_position
from biphasic.model.loading.reading import load_model, read_config
from biphasic.seeds import stream
from biphasic.tasks.embedding import (
    MODULES,
    Choices,
    TrainedVectors,
    embedding_settings,
    prompts_of,
)
from biphasic.tasks.use import HEAD_RECORD, read_head


def write_export(
    model: Path | str,
    out: Path,
    settings: ExportSettings,
    *,
    say: Say,
    revision: str | None = None,
) -> Path:
    """Write a model as a folder that works without biphasic, and verify it; see `export_model`."""
    settings.check()
    # A folder of something else is refused before a model is fetched.
    find_made(out)
    source = open_source(model, revision=revision)
    has_pooling = settings.format != "hf"
    causal = has_pooling and TrainedVectors.of(source.state).causal
    check_as(settings.as_, read_config(source.folder), where=source.folder, causal=causal)
    inputs = settings.inputs(source.identity)
    if find_made(out, inputs):
        say(f"{out}: already made from the same model and settings; nothing to do")
        return out
    if settings.adapter:
        source = with_adapter(source)
    if (source.folder / HEAD_RECORD).is_file() and (head := read_head(source.folder)).head:
        say(
            f"warning: the export has no head for {head.task}, so it gives vectors and no answers; "
            f"for answers, serve {source.folder} itself (docs/export.md)"
        )
    if source.tokenizer.warning:
        say(f"warning: {source.tokenizer.warning}")
    if has_pooling and source.state is None and (other := _other_vectors(source.folder)):
        say(f"warning: {source.folder}: {other}; the export has the plain mean, without prompts")
    with sole_writer(out, say=say), new_folder(out) as partial:
        write = _write_with_graph if settings.format == "onnx" else _write
        write(source, partial, out.name, settings, say)
        sign(partial, inputs)
    return out


def _other_vectors(folder: Path) -> str:
    """Say how a sentence-transformers model makes vectors, if an export makes others of it."""
    if not (folder / MODULES).is_file():
        return ""
    try:
        settings = embedding_settings(folder, Choices())
    except ModelError as error:
        return str(error)
    ways = {
        f"pooling {settings.pooling}": settings.pooling != "mean",
        "length 1": settings.is_normalized,
        "causal attention": settings.causal,
        "prompts": any(prompts_of(folder).values()),
    }
    own = [name for name, is_so in ways.items() if is_so]
    return f"its own vectors have {', '.join(own)}" if own else ""


def _write_with_graph(
    source: Source, folder: Path, name: str, settings: ExportSettings, say: Say
) -> None:
    with tempfile.TemporaryDirectory(prefix=f".partial-{name}-", dir=folder.parent) as work:
        staged, graph = Path(work) / name, Path(work) / "graph"
        staged.mkdir()
        export = _write(source, staged, name, settings, say)
        say("exporting to ONNX")
        difference = write_onnx(staged, graph, pooling=export.vectors.pooling)
        for path in graph.iterdir():
            path.rename(folder / path.name)
    write_export_card(folder, replace(export, onnx=difference))


def _write(source: Source, folder: Path, name: str, settings: ExportSettings, say: Say) -> Export:
    has_pooling = settings.format != "hf"
    # Without pooling, a folder is an encoder for any use, and reads in both directions.
    vectors = TrainedVectors.of(source.state) if has_pooling else TrainedVectors()
    place = folder
    if source.adapter:
        place = folder / BASE
        place.mkdir()
    say("reading the model")
    reference = read_reference(source, vectors, dtype=settings.dtype)
    say("writing")
    written = write_model(
        source,
        place,
        settings,
        probe=reference.sequences[0],
        # Training on pairs leaves the head behind, and libraries would warn of its weights. A Llama
        # that reads both ways has no class with a head, nor has one that gets an adapter.
        with_head=not vectors.is_on_pairs
        and settings.as_ in ("auto", "eurobert")
        and not source.adapter,
        causal=vectors.causal,
    )
    write_tokenizer(source.tokenizer, place, max_seqlen=source.max_seqlen)
    if has_pooling:
        write_sentence_transformers(
            place,
            hidden_size=reference.outputs["embeddings"].shape[1],
            max_seqlen=source.limits.longest_input,
            prompts=vectors.prompts,
            pooling=vectors.pooling,
            similarity=vectors.similarity,
        )

    say("checking in a fresh process")
    reloaded = check_export(
        place, source, reference, written, dtype=settings.dtype, has_pooling=has_pooling, say=say
    )
    export = Export(source, name, settings, vectors, written, reloaded)
    write_export_card(folder, export)
    say(
        f"hidden states match ours to {reloaded.hidden_states:.0e}, in transformers "
        f"{reloaded.transformers} in a separate process"
    )
    return export


_GRAPH = Path("onnx") / "model.onnx"  # where optimum and sentence-transformers look
# For hidden states; relative to the largest if that is above 1, as fp32 rounds relatively.
TOLERANCE = 1e-4
# onnxruntime may round by this factor more than torch, where fp32 rounds by more than that.
_ROUNDING = 4
_LONGROPE = "longrope"
_INPUTS = ("input_ids", "attention_mask")
_OUTPUTS = ("last_hidden_state", "sentence_embedding")
_INLINE_BYTES = 2_000_000_000  # protobuf's limit is 2 GiB; the graph itself needs some of it
_LONGEST_PROBE = 1100  # tokens: beyond the windows of all families known, and quick

Probe = dict[str, np.ndarray]  # a graph's inputs: int64 [num_rows, longest] each


def write_onnx(folder: Path, out: Path, *, pooling: Pooling = "mean") -> float:
    """Write the encoder of a folder as `onnx/model.onnx`, with its configuration and tokenizer.

    The graph takes `input_ids` and `attention_mask`, int64 [batch_size, sequence_length], and gives
    `last_hidden_state`, fp32 [batch_size, sequence_length, hidden_size], and `sentence_embedding`,
    fp32 [batch_size, hidden_size]: the mean, first or last of the states of all non-padding tokens.
    onnxruntime runs it on batches of several shapes; `out` is created only if the results match
    those of torch.

    `folder` is a checked export for sentence-transformers. The result is the largest difference
    between onnxruntime and torch, in units of the tolerance's scale.
    """
    require_packages()
    with _quietly(), new_folder(out) as partial:
        encoder = _Encoder(_load(folder), pooling).eval()
        # Configuration, tokenizer, card and pooling; the graph holds the weights.
        shutil.copytree(
            folder,
            partial,
            ignore=shutil.ignore_patterns("*.safetensors*"),
            copy_function=shutil.copyfile,
            dirs_exist_ok=True,
        )
        _export(encoder, partial / _GRAPH, folder=folder)
        return _compare(encoder, partial / _GRAPH, folder=folder)


class _Encoder(nn.Module):
    """The body of a model, with the inputs and outputs of the graph."""

    def __init__(self, body: PreTrainedModel, pooling: Pooling = "mean") -> None:
        super().__init__()
        self.body, self.pooling = body, pooling

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        states = self.body(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask
        # Chosen by the mask, as padding may be on either side.
        if self.pooling != "mean":
            seen = attention_mask.cumsum(1)
            weights = weights * (seen == (1 if self.pooling == "first" else seen[:, -1:]))
        weights = weights[..., None].to(states.dtype)
        return states, (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


def _load(folder: Path) -> PreTrainedModel:
    """Load the model as users do; the export's check has loaded it like this before."""
    config = read_config(folder)
    if "dynamic" in _rope_types(getattr(config, "rope_parameters", None)):
        raise ModelError(
            f"{folder}: rope of type dynamic ({config.model_type}) depends on the length of the "
            "input, which torch cannot put into a graph"
        )
    model, _ = load_model(AutoModel, folder, config)
    model.config.use_cache = False  # otherwise decoders also output keys and values
    return model


def _rope_types(parameters: Any) -> set[str]:
    """Return the rope types of a configuration, which may have one per layer type."""
    if not isinstance(parameters, dict):
        return set()
    types = {parameters["rope_type"]} if "rope_type" in parameters else set()
    return types.union(*map(_rope_types, parameters.values()))


def _export(encoder: _Encoder, file: Path, *, folder: Path) -> None:
    import onnx_ir  # noqa: PLC0415 - optional package
    from torch.onnx.errors import OnnxExporterError  # noqa: PLC0415

    axes = {0: "batch_size", 1: "sequence_length"}
    # Two rows of different lengths: torch would fix a size of 1 in the graph.
    sample = _batch(encoder.body, [7, 5])
    try:
        with torch.no_grad(), traceable_longrope(encoder.body):
            program: Any = torch.onnx.export(
                encoder,
                tuple(torch.from_numpy(sample[name]) for name in _INPUTS),
                dynamo=True,
                input_names=_INPUTS,
                output_names=_OUTPUTS,
                dynamic_shapes=dict.fromkeys(_INPUTS, axes),
                verbose=False,
            )
    except OnnxExporterError as error:
        # torch reports its stages; the first cause says which operation it cannot export.
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = f"{type(cause).__name__}: {str(cause).strip().splitlines()[0]}"
        raise ModelError(
            f"{folder}: torch cannot export {type(encoder.body).__name__} to ONNX ({reason})"
        ) from None
    file.parent.mkdir()
    num_bytes = sum(weights.nbytes for weights in encoder.state_dict().values())
    data = f"{file.name}_data" if num_bytes > _INLINE_BYTES else None
    onnx_ir.save(program.model, file, external_data=data)


@contextmanager
def traceable_longrope(body: PreTrainedModel) -> Iterator[None]:
    """Make a model choose between its short and long frequencies within the graph, temporarily.

    transformers writes the chosen frequencies into a buffer. Some releases branch for this, which
    cannot be traced (5.17). With others, depending on how torch traces, the graph holds either the
    choice or only the traced buffer; the latter is silently wrong beyond the length of the short
    frequencies (5.23 with gradients). Only rotary positions of type `longrope` are changed (Phi-3,
    128k).

    Reference: Ding et al. 2024, "LongRoPE", arXiv:2402.13753, as in transformers.
    """
    rotaries = {
        name: module
        for name, module in body.named_modules()
        if getattr(module, "rope_type", None) == _LONGROPE
    }
    for name, rotary in rotaries.items():
        body.set_submodule(name, _ByLength(rotary))
    try:
        yield
    finally:
        for name, rotary in rotaries.items():
            body.set_submodule(name, rotary)


class _ByLength(nn.Module):
    """Two rotary modules with fixed frequencies, and the choice between them."""

    def __init__(self, rotary: Any) -> None:
        super().__init__()
        self.limit: int = rotary.config.rope_parameters["original_max_position_embeddings"]
        self.short = _fixed(rotary, length=self.limit)
        self.long = _fixed(rotary, length=self.limit + 1)

    def forward(self, states: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        # As transformers decides, by the longest of a batch.
        is_long = position_ids.max() >= self.limit
        short_cos, short_sin = self.short(states, position_ids)
        long_cos, long_sin = self.long(states, position_ids)
        return torch.where(is_long, long_cos, short_cos), torch.where(is_long, long_sin, short_sin)


def _fixed(rotary: Any, *, length: int) -> nn.Module:
    """Return a copy whose frequencies are fixed to those for one input length."""
    fixed = copy.deepcopy(rotary)
    fixed.rope_type = "default"
    frequencies, fixed.attention_scaling = ROPE_INIT_FUNCTIONS[_LONGROPE](
        rotary.config, torch.device("cpu"), seq_len=length
    )
    fixed.inv_freq = frequencies
    return fixed


def _compare(encoder: _Encoder, file: Path, *, folder: Path) -> float:
    """Return the largest difference over all probes."""
    import onnxruntime  # noqa: PLC0415 - optional package

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    worst = 0.0
    for probe in _probes(encoder.body):
        expected = _run(encoder, probe)
        computed = map(np.asarray, session.run(list(_OUTPUTS), probe))
        for name, theirs in zip(_OUTPUTS, computed, strict=True):
            ours, mask = expected[name], probe["attention_mask"]
            difference = _difference(ours, theirs, mask)
            if not difference <= TOLERANCE:
                # Rounding is no error: about as near to fp64 as torch's outputs in fp32 are.
                # A copy, as later probes read in fp32 again.
                exact = _run(copy.deepcopy(encoder).double(), probe)[name]
                rounding = _ROUNDING * _difference(exact, ours, mask)
                if not _difference(exact, theirs, mask) <= rounding:
                    raise ModelError(
                        f"{folder}: onnxruntime and torch differ by {difference:.1e} in {name} of "
                        f"a batch of {len(theirs)} x {mask.shape[1]} tokens; not exported"
                    )
            worst = max(worst, difference)
    return worst


@torch.no_grad()
def _run(encoder: _Encoder, probe: Probe) -> dict[str, np.ndarray]:
    outputs = encoder(**{name: torch.from_numpy(probe[name]) for name in _INPUTS})
    return {name: output.numpy() for name, output in zip(_OUTPUTS, outputs, strict=True)}


def _difference(expected: np.ndarray, computed: np.ndarray, mask: np.ndarray) -> float:
    if expected.ndim == mask.ndim + 1:  # one state per token; padding states are meaningless
        expected, computed = expected[mask == 1], computed[mask == 1]
    return float(np.abs(computed - expected).max() / max(1.0, np.abs(expected).max()))


def _probes(body: PreTrainedModel) -> Iterator[Probe]:
    """Yield batches of one and of many, padded on either side or not, up to beyond any window."""
    # Longer than any length that changes the model, within reason.
    config = body.config
    rope = getattr(config, "rope_parameters", None) or {}
    borders = [getattr(config, name, None) for name in ("sliding_window", "local_attention")]
    borders.append(rope.get("original_max_position_embeddings"))
    needed = max(64, *(border + 8 for border in borders if isinstance(border, int)), 0)
    limit = getattr(config, "max_position_embeddings", None) or needed
    longest = min(needed, _LONGEST_PROBE, limit - first_position(body))
    yield _batch(body, [1])
    yield _batch(body, [min(9, longest)])
    yield _batch(body, [min(21, longest)] * 3)
    yield _batch(body, [min(21, longest), min(17, longest), 1, 2])
    # Tokenizers of decoders often pad on the left.
    yield _batch(body, [3, min(30, longest)], left=True)
    yield _batch(body, [longest, 4])


def _batch(body: PreTrainedModel, lengths: list[int], *, left: bool = False) -> Probe:
    shape = (len(lengths), max(lengths))
    draws = stream("onnx", 0).random_raw(shape[0] * shape[1]).reshape(shape)
    input_ids = (draws % np.uint64(body.config.vocab_size)).astype(np.int64)
    pad_id = body.config.pad_token_id or 0
    # Families that count positions by padding would see holes in a text.
    input_ids[input_ids == pad_id] = pad_id + 1 if pad_id == 0 else pad_id - 1
    places = np.arange(shape[1])[:: -1 if left else 1]
    is_token = places < np.array(lengths)[:, None]
    input_ids[~is_token] = pad_id
    return {"input_ids": input_ids, "attention_mask": is_token.astype(np.int64)}


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence torch's messages about its internals."""
    loggers = [logging.getLogger(name) for name in ("torch", "torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
