"""Models by folder or by id on the Hugging Face hub: where they lie, and what names them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    HFValidationError,
    HTTPError,  # pyright: ignore[reportPrivateImportUsage]  # httpx's, or its successor's
)

from biphasic.errors import ConfigError, DataError, ModelError, ModelFilesError, reading
from biphasic.files import digest, expanded, file_sha256, is_folder, read_json, read_json_object
from biphasic.model.build import empty_body
from biphasic.model.forward import first_position

MAX_INPUT_TOKENS = 2048
"""Longest input by default, however much more a model could read: the study's rows."""

_LIMITS = "look at the numbers in its config.json and tokenizer_config.json"
_WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors")
# What decides a model's results, and nothing else: no other formats, no code, no other variants.
_FILES = (
    *_WEIGHTS,
    "model.safetensors.index.json",
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "sentence_bert_config.json",
)
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on disk.

    Attributes:
        folder: Where its files are.
        identity: What names it: a state's own identity, else a hash of its files.
        revision: The commit that a model from the hub was resolved to.
    """

    folder: Path
    identity: str
    revision: str | None


def fetch_model(name_or_folder: Path | str, *, revision: str | None = None) -> LocalModel:
    """Find a model on disk, or fetch it from the hub.

    What the hub's cache holds is not fetched again, and can be had without a network.

    Args:
        name_or_folder: A folder, or an id on the hub such as `answerdotai/ModernBERT-base`.
        revision: Branch, tag or commit on the hub; its main branch when None.

    Raises:
        ConfigError: A revision was given for a folder.
        DataError: There is no such model, or the hub cannot be reached.
        ModelError: It has no weights as safetensors.
    """
    name, folder = str(name_or_folder), expanded(name_or_folder)
    if not is_folder(folder):
        return _fetch(name, revision)
    if revision is not None:
        raise ConfigError(f"revision '{revision}': only models of the hub have one, not {folder}")
    with reading(folder, ModelFilesError):
        return LocalModel(folder.resolve(), _folder_identity(folder), None)


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What a model can read.

    Attributes:
        longest_input: The longest input to give it, in tokens, special tokens included: the least
            of what it has positions for, what its makers used for sentences
            (`sentence_bert_config.json`), what its tokenizer states, and `MAX_INPUT_TOKENS`.
        positions: The longest input that it has positions for; None where it states no limit.
        num_embeddings: Tokens that it has embeddings for.
    """

    longest_input: int
    positions: int | None
    num_embeddings: int


def model_limits(folder: Path) -> ModelLimits:
    """Look at a model's shape, without its weights.

    Raises:
        DataError: A file is damaged.
        ModelError: transformers does not know the model, or the model reads no tokens.
    """
    with reading(folder, ModelFilesError, remedy=_LIMITS):
        return _limits(folder)


def _limits(folder: Path) -> ModelLimits:
    body = empty_body(folder)
    num_embeddings = getattr(body.config, "vocab_size", None)
    if num_embeddings is None:
        raise ModelError(f"{folder}: config.json states no vocab_size")
    positions = getattr(body.config, "max_position_embeddings", None)
    # XLNet says -1: no limit.
    positions = positions - first_position(body) if positions and positions > 0 else None
    stated = [
        positions,
        _stated(folder / "sentence_bert_config.json", "max_seq_length"),
        _stated(folder / "tokenizer_config.json", "model_max_length"),  # 1e30 where it knows none
        MAX_INPUT_TOKENS,
    ]
    longest_input = min(int(limit) for limit in stated if limit)
    return ModelLimits(longest_input, positions, num_embeddings)


def _stated(path: Path, name: str) -> float | None:
    return read_json_object(path).get(name) if path.is_file() else None


def _folder_identity(folder: Path) -> str:
    if not (folder / "config.json").is_file():
        raise DataError(f"{folder}: no model here (no config.json)")
    state = read_json(folder / "state.json") if (folder / "state.json").is_file() else None
    # Other programs write files of this name too.
    if isinstance(state, dict) and isinstance(state.get("identity"), str):
        return state["identity"]
    return _files_digest(path for path in folder.iterdir() if _is_one_of(path, _FILES))


def _fetch(name: str, revision: str | None) -> LocalModel:
    if not _HUB_ID.fullmatch(name) or name.startswith("."):
        raise DataError(f"{name}: no such folder, and not a hub id such as owner/name")
    try:
        snapshot = Path(snapshot_download(name, revision=revision, allow_patterns=list(_FILES)))
    except (HTTPError, OSError, HFValidationError) as error:
        from biphasic.data.hub import explain  # noqa: PLC0415 - datasets is slow to import

        at = f" at revision '{revision}'" if revision else ""
        raise DataError(
            f"model {name}{at}: no such folder, and {explain(error.__cause__ or error)}"
        ) from None
    # The cache may hold more: what other programs asked for.
    files = [path for path in snapshot.iterdir() if _is_one_of(path, _FILES)]
    if not (snapshot / "config.json").is_file():
        raise DataError(f"model {name}: has no config.json; no model that transformers can load")
    if not any(_is_one_of(path, _WEIGHTS) for path in files):
        raise ModelError(
            f"model {name}: has no weights as safetensors, and other formats can run code when "
            "they are read; convert them, or take a revision that has model.safetensors"
        )
    return LocalModel(snapshot, _files_digest(files), snapshot.name)


def _is_one_of(path: Path, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(path.name, pattern) for pattern in patterns)


def _files_digest(paths: Iterable[Path]) -> str:
    return digest({path.name: file_sha256(path) for path in paths})
