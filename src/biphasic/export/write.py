"""Exports a model: read, write, check in a separate process, then rename into place."""

from __future__ import annotations

import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from biphasic.config import nearest
from biphasic.errors import ConfigError, ModelError
from biphasic.export import MAX_SHARD_SIZE
from biphasic.export.card import Export, write_export_card
from biphasic.export.check import check_export, read_reference
from biphasic.export.hf import Dtype, write_model, write_sentence_transformers, write_tokenizer
from biphasic.export.output import find_made, new_folder, sign
from biphasic.export.source import Source, open_source
from biphasic.locks import Say, sole_writer
from biphasic.tasks.embedding import (
    MODULES,
    Choices,
    TrainedVectors,
    embedding_settings,
    prompts_of,
)
from biphasic.tasks.finetuned import HEAD_RECORD, read_head

Format = Literal["hf", "sentence-transformers", "onnx"]
_SIZE = re.compile(r"[1-9]\d*(KB|MB|GB)")


def check_format(format: str) -> None:
    """Raise an error if a format is unknown or its packages are missing."""
    if format not in (known := get_args(Format)):
        raise ConfigError(f"format: unknown value '{format}'{nearest(format, known)}")
    if format == "onnx":
        from biphasic.export.onnx import require_packages  # noqa: PLC0415 - an extra

        require_packages()


def write_export(
    model: Path | str,
    out: Path,
    *,
    say: Say,
    format: Format = "hf",
    dtype: Dtype = "float32",
    max_shard_size: str = MAX_SHARD_SIZE,
    revision: str | None = None,
) -> Path:
    """Write a model as a folder that works without biphasic, and verify it; see `export_model`."""
    check_format(format)
    if not _SIZE.fullmatch(max_shard_size):
        raise ConfigError(f"max_shard_size: '{max_shard_size}' is not a size such as 5GB or 500MB")
    if format == "onnx" and dtype != "float32":
        raise ConfigError("precision: bf16 is not supported for ONNX; use fp32")
    settings: dict[str, Any] = {"format": format, "dtype": dtype, "max_shard_size": max_shard_size}
    find_made(out)
    source = open_source(model, revision=revision)
    inputs = export_inputs(source.identity, **settings)
    if find_made(out, inputs):
        say(f"{out}: already made from the same model and settings; nothing to do")
        return out
    if (source.folder / HEAD_RECORD).is_file() and (head := read_head(source.folder)).head:
        say(
            f"warning: the export has no head for {head.task}, so it gives vectors and no answers; "
            f"for answers, serve {source.folder} itself (docs/export.md)"
        )
    if source.tokenizer.warning:
        say(f"warning: {source.tokenizer.warning}")
    if format != "hf" and source.state is None and (other := _other_vectors(source.folder)):
        say(f"warning: {source.folder}: {other}; the export has the plain mean, without prompts")
    with sole_writer(out, say=say), new_folder(out) as partial:
        if format == "onnx":
            _write_with_graph(source, partial, out.name, say, **settings)
        else:
            _write(source, partial, out.name, say, **settings)
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


def _write_with_graph(source: Source, folder: Path, name: str, say: Say, **settings: Any) -> None:
    from biphasic.export.onnx import write_onnx  # noqa: PLC0415 - an extra; slow to import

    with tempfile.TemporaryDirectory(prefix=f".partial-{name}-", dir=folder.parent) as work:
        staged, graph = Path(work) / name, Path(work) / "graph"
        staged.mkdir()
        export = _write(source, staged, name, say, **settings)
        say("exporting to ONNX")
        difference = write_onnx(staged, graph, pooling=export.vectors.pooling)
        for path in graph.iterdir():
            path.rename(folder / path.name)
    write_export_card(folder, replace(export, onnx=difference))


def export_inputs(
    identity: str, *, format: Format, dtype: Dtype = "float32", max_shard_size: str = MAX_SHARD_SIZE
) -> dict[str, str]:
    """Return everything that determines an export's content."""
    settings = {"format": format, "dtype": dtype, "max_shard_size": max_shard_size}
    return {"command": "export", "model": identity, **settings}


def _write(
    source: Source,
    folder: Path,
    name: str,
    say: Say,
    *,
    format: Format,
    dtype: Dtype,
    max_shard_size: str,
) -> Export:
    has_pooling = format != "hf"
    # Without pooling, a folder is an encoder for any use, and reads in both directions.
    vectors = TrainedVectors.of(source.state) if has_pooling else TrainedVectors()
    say("reading the model")
    reference = read_reference(source, vectors, dtype=dtype)
    say("writing")
    written = write_model(
        source,
        folder,
        dtype=dtype,
        max_shard_size=max_shard_size,
        probe=reference.sequences[0],
        # Training on pairs leaves the head behind, and libraries would warn of its weights.
        with_head=not vectors.is_on_pairs,
        causal=vectors.causal,
    )
    write_tokenizer(source.tokenizer, folder, max_seqlen=source.max_seqlen)
    if has_pooling:
        write_sentence_transformers(
            folder,
            hidden_size=reference.outputs["embeddings"].shape[1],
            max_seqlen=source.limits.longest_input,
            prompts=vectors.prompts,
            pooling=vectors.pooling,
            similarity=vectors.similarity,
        )

    say("checking in a fresh process")
    reloaded = check_export(
        folder, source, reference, written, dtype=dtype, has_pooling=has_pooling, say=say
    )
    export = Export(source, name, format, dtype, vectors, written, reloaded)
    write_export_card(folder, export)
    say(
        f"hidden states match ours to {reloaded.hidden_states:.0e}, in transformers "
        f"{reloaded.transformers} in a separate process"
    )
    return export
