"""Finds models by folder or by id on the Hugging Face hub, and determines their identity."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from biphasic.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    ModelError,
    ModelFilesError,
    reading,
)
from biphasic.files import (
    ADAPTER_FILES,
    digest,
    expanded,
    file_sha256,
    is_folder,
    read_json,
    read_json_object,
    refuse_adapter,
    refuse_file,
)
from biphasic.hub import fetch_files
from biphasic.model.shape import FUSED
from biphasic.store import MANIFEST, STATE, check_export

T = TypeVar("T")

_WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors")
# The files that determine a model's results: no other formats, code or variants.
_FILES = (
    *_WEIGHTS,
    "model.safetensors.index.json",
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "sentence_bert_config.json",
)
_AT_REST_SECONDS = 2.0
_CHANGED_STATE = (
    f"take another copy of the state, or delete {MANIFEST} and state.json if you changed it on "
    "purpose"
)


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on disk."""

    folder: Path
    identity: str  # A verified state's own identity, otherwise a hash of its files
    revision: str | None  # the resolved commit of a model from the hub

    @property
    def is_fused(self) -> bool:
        """True if weights of its layers hold several matrices; False if it is not here yet."""
        path = self.folder / "config.json"
        return path.is_file() and read_json_object(path).get("model_type") in FUSED


def fetch_model(name_or_folder: Path | str, *, revision: str | None = None) -> LocalModel:
    """Find a model on disk, or fetch it from the hub; a damaged state or export is refused."""
    # Files in the hub's cache are not fetched again, and are available offline. Ids on the hub look
    # like `answerdotai/ModernBERT-base`; the default revision is the main branch.
    folder, commit = locate_model(name_or_folder, revision=revision)
    with reading(folder, ModelFilesError):
        identity = once(_intact_identity if commit is None else _files_identity, folder)
    return LocalModel(folder, identity, commit)


def find_model(name_or_folder: str, *, revision: str | None = None) -> LocalModel | None:
    """Find a model on disk or in the hub's cache; None if it is still to be fetched."""
    if is_folder(expanded(name_or_folder)):
        return fetch_model(name_or_folder, revision=revision)
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - slow to import
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError  # noqa: PLC0415

    try:
        folder = Path(snapshot_download(name_or_folder, revision=revision, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError):
        return None
    # Other programs may have fetched other files.
    if not (folder / "config.json").is_file() or not _has_weights(folder):
        return None
    return LocalModel(folder, once(_files_identity, folder), folder.name)


def locate_model(
    name_or_folder: Path | str, *, revision: str | None = None
) -> tuple[Path, str | None]:
    """Return the folder of a model, found like `fetch_model`, and its commit if it is the hub's."""
    name, folder = str(name_or_folder), expanded(name_or_folder)
    refuse_file(folder)
    if not is_folder(folder):
        snapshot = _fetch(name, revision)
        return snapshot, snapshot.name
    refuse_adapter(folder)
    if revision is not None:
        raise ConfigError(f"revision '{revision}': only hub models have one, not {folder}")
    if not (folder / "config.json").is_file():
        for file in sorted(folder.glob("*.gguf")):
            return locate_model(file)
        raise DataError(f"{folder}: no model here (no config.json)")
    return folder.resolve(), None


def model_identity(folder: Path) -> str:
    """Return the identity of the model in a folder."""
    # It is the identity in a state's record if the manifest agrees, covers every file and has each
    # file's hash; otherwise a hash of the files that determine results. A process hashes a folder
    # once, and again if a file changed.
    return once(_identity, folder)


def claimed_identity(folder: Path) -> str | None:
    """Return the state identity in a folder's records, without verification."""
    for name in ("state.json", MANIFEST):
        try:
            record = read_json(folder / name)
        except DataError:
            continue
        # Other programs also write files with these names.
        if isinstance(record, dict) and isinstance(record.get("identity"), str):
            return record["identity"]
    return None


def check_intact(folder: Path) -> None:
    """Check a folder's files against the hashes in a state's manifest, or in an export's card."""
    # A process does so once, and again if a file changed.
    once(_intact_identity, folder)


def _intact_identity(folder: Path) -> str:
    claimed = _verified_state(folder, remedy=_CHANGED_STATE)
    check_export(folder)
    return claimed or _files_identity(folder)


def check_model(folder: Path, identity: str, *, remedy: str) -> None:
    """Check that a folder still holds the same model."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; {remedy}")
    if model_identity(folder) == identity or once(_files_identity, folder) == identity:
        return
    if claimed_identity(folder) == identity:
        _verified_state(folder, remedy=remedy)
    raise CheckpointError(f"{folder}: holds another model than {identity[:12]}; {remedy}")


def once(read: Callable[[Path], T], folder: Path) -> T:
    """Return `read(folder)`, cached in this process until a file changes."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = [(path.relative_to(folder), path.stat()) for path in paths]
    stamps = tuple(
        (file, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
        for file, stat in files
    )
    # A file just written may be written again with the same modification time.
    is_at_rest = (
        time.time() - max((stat.st_ctime for _, stat in files), default=0.0) > _AT_REST_SECONDS
    )
    return _cached(read, folder, stamps) if is_at_rest else read(folder)


@lru_cache(maxsize=64)
def _cached(read: Callable[[Path], Any], folder: Path, _stamps: tuple[Any, ...]) -> Any:
    return read(folder)


def _identity(folder: Path) -> str:
    try:
        return once(_intact_identity, folder)
    except (CheckpointError, DataError):
        return _files_identity(folder)


def _verified_state(folder: Path, *, remedy: str) -> str | None:
    """Return the identity of a verified state; None if a folder has no state record."""
    claimed = claimed_identity(folder)
    if claimed is None:
        return None
    manifest = STATE.open(folder, remedy=remedy).verify().manifest
    if manifest.get("identity") != claimed:
        raise CheckpointError(f"{folder}: state.json and {MANIFEST} name two states; {remedy}")
    deciding = {path.name for path in deciding_files(folder)} | {"state.json"}
    if added := sorted(deciding - manifest["files"].keys()):
        raise CheckpointError(f"{folder / added[0]}: not part of state {claimed[:12]}; {remedy}")
    return claimed


def _fetch(name: str, revision: str | None) -> Path:
    failure = f"no folder '{name}' here, and "
    patterns = (*_FILES, ADAPTER_FILES[0])
    snapshot = fetch_files(name, patterns, revision=revision, failure=failure)
    refuse_adapter(snapshot)
    if not (snapshot / "config.json").is_file():
        raise DataError(f"model {name}: no config.json, so transformers cannot load it")
    if not _has_weights(snapshot):
        raise ModelError(
            f"model {name}: no weights as safetensors, and loading other formats can run code; "
            "convert them, or use a revision that has model.safetensors"
        )
    return snapshot


def _has_weights(folder: Path) -> bool:
    return any(_is_one_of(path, _WEIGHTS) for path in folder.iterdir())


def deciding_files(folder: Path) -> Iterable[Path]:
    """Return the files of a folder that determine a model's results."""
    # It may hold more files: the owner's notes, or other files in the hub's cache.
    return (path for path in folder.iterdir() if _is_one_of(path, _FILES))


def _is_one_of(path: Path, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(path.name, pattern) for pattern in patterns)


def _files_identity(folder: Path) -> str:
    return digest({path.name: file_sha256(path) for path in deciding_files(folder)})
