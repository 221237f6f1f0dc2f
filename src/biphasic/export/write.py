"""Exporting a model: read, written, checked by a stranger, and only then in place."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from biphasic.config import nearest
from biphasic.errors import ConfigError
from biphasic.export.cards.card import Export, write_export_card
from biphasic.export.check import Reloaded, check_export, refuse_differences
from biphasic.export.formats.hf import MAX_SHARD_SIZE, WrittenModel, write_model
from biphasic.export.formats.sentence_transformers import write_sentence_transformers
from biphasic.export.formats.tokenizer import write_tokenizer
from biphasic.export.output import find_made, new_folder, sign
from biphasic.export.reference import Dtype, Reference, read_reference
from biphasic.export.source import Source, open_source
from biphasic.files import expanded

Format = Literal["hf", "sentence-transformers", "onnx"]
_SIZE = re.compile(r"[1-9]\d*(KB|MB|GB)")


def check_format(format: str) -> None:
    """Refuse a format that there is none of, or whose packages are missing.

    Raises:
        ConfigError: Says which there are, or what to install.
    """
    _known("format", format, Format)
    if format == "onnx":
        from biphasic.export.formats.onnx import require_packages  # noqa: PLC0415 - an extra

        require_packages()


def export_model(
    model: Path | str,
    out: Path | str,
    *,
    format: Format = "hf",
    dtype: Dtype = "float32",
    max_shard_size: str = MAX_SHARD_SIZE,
    revision: str | None = None,
    say: Callable[[str], None] | None = None,
) -> Path:
    """Write a model as a folder that works without biphasic, and prove that it does.

    A fresh process that cannot import biphasic loads what was written; its hidden states, logits,
    token ids and embeddings must be ours. If they are not, there is no folder.

    Args:
        model: Folder of a state, or of a model in Hugging Face's format; or a hub id.
        out: The folder to make.
        format: `hf` for transformers; `sentence-transformers` for that as well, with mean pooling;
            `onnx` for onnxruntime as well.
        dtype: Precision of the weights.
        max_shard_size: Such as `5GB`; larger weights are split into several files.
        revision: Of a model on the hub.
        say: Told what is being done, one sentence at a time.

    Returns:
        The folder. One that was made before from the same model and settings is left as it is.

    Raises:
        ConfigError: A setting is wrong, or `out` holds something else.
        DataError: The model is missing, has no weights or no mask token, or its tokenizer belongs
            to another.
        CheckpointError: A state is damaged.
        ModelError: The model cannot be an encoder, or the check failed.

    Example:
        >>> from biphasic import export_model
        >>> folder = export_model(state, "encoder", format="sentence-transformers")
        >>> (folder / "modules.json").is_file()
        True
    """
    settings = _Settings(format, dtype, max_shard_size)
    settings.check()
    say = say or (lambda _: None)
    out = expanded(out)
    find_made(out)
    source = open_source(model, revision=revision)
    inputs = export_inputs(source.identity, **vars(settings))
    if find_made(out, inputs):
        say(f"{out}: made before from the same model and settings; nothing to do")
        return out
    if format != "onnx":
        with new_folder(out) as partial:
            _write(source, partial, out.name, settings, say)
            sign(partial, inputs)
        return out
    from biphasic.export.formats.onnx import write_onnx  # noqa: PLC0415 - an extra; slow to import

    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=out.parent) as name:
        staged = Path(name) / out.name
        staged.mkdir()
        export = _write(source, staged, out.name, settings, say)
        say("exporting to ONNX")
        difference = write_onnx(staged, out)
    write_export_card(out, replace(export, onnx=difference))
    sign(out, inputs)
    return out


def export_inputs(
    identity: str, *, format: Format, dtype: Dtype = "float32", max_shard_size: str = MAX_SHARD_SIZE
) -> dict[str, str]:
    """Return all that decides what an export holds."""
    settings = {"format": format, "dtype": dtype, "max_shard_size": max_shard_size}
    return {"command": "export", "model": identity, **settings}


@dataclass(frozen=True)
class _Settings:
    """How an export is written: see `export_model`."""

    format: Format
    dtype: Dtype
    max_shard_size: str

    def check(self) -> None:
        """Refuse what cannot be.

        Raises:
            ConfigError: Names the setting.
        """
        check_format(self.format)
        _known("dtype", self.dtype, Dtype)
        if not _SIZE.fullmatch(self.max_shard_size):
            raise ConfigError(
                f"max_shard_size: '{self.max_shard_size}' is no size such as 5GB or 500MB"
            )
        if self.format == "onnx" and self.dtype != "float32":
            raise ConfigError(f"dtype: '{self.dtype}' is for weights alone; ONNX is float32 here")


def _known(option: str, value: str, choices: Any) -> None:
    if value not in get_args(choices):
        hint = nearest(value, get_args(choices))
        raise ConfigError(f"{option}: unknown value '{value}'{hint}")


def _write(
    source: Source, folder: Path, name: str, settings: _Settings, say: Callable[[str], None]
) -> Export:
    """Write all files of an export and check them."""
    has_pooling = settings.format != "hf"
    say("reading the model")
    reference = read_reference(source, dtype=settings.dtype)
    say("writing")
    written = write_model(
        source,
        folder,
        dtype=settings.dtype,
        max_shard_size=settings.max_shard_size,
        probe=reference.probe,
    )
    write_tokenizer(source.tokenizer, folder, max_seqlen=source.max_seqlen)
    if has_pooling:
        write_sentence_transformers(
            folder, hidden_size=reference.hidden_size, max_seqlen=source.limits.longest_input
        )
    found = _check(source, folder, reference, written=written, settings=settings, say=say)
    export = Export(source, name, settings.format, settings.dtype, written, found)
    write_export_card(folder, export)
    say(
        f"hidden states as ours to {max(found.alone, found.many):.0e}, by transformers "
        f"{found.transformers} in a process of its own"
    )
    return export


def _check(
    source: Source,
    folder: Path,
    reference: Reference,
    *,
    written: WrittenModel,
    settings: _Settings,
    say: Callable[[str], None],
) -> Reloaded:
    """Compare in fp32; in fp64 where rounding alone may be what differs.

    Raises:
        ModelError: The export is not what was trained.
    """
    what = {
        "tokenizer_roles": source.tokenizer.special_ids,
        "head": written.architecture if written.has_head else None,
        "logits": written.logits,
        "has_pooling": settings.format != "hf",
    }
    say("checking in a fresh process")
    found = check_export(folder, reference, **what)
    if not found.is_ours and found.may_be_rounding:
        say("checking again in fp64, as fp32 rounds too much to tell")
        reference = read_reference(source, dtype=settings.dtype, is_double=True)
        found = check_export(folder, reference, **what, is_double=True)
    refuse_differences(found)
    return found
