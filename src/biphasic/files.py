"""Files that are either whole or absent, and the hashes that prove it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from biphasic.errors import CheckpointError, ConfigError, DataError, reading

MANIFEST = "manifest.json"
PARTIAL = ".partial-"
"""Begins the names of what is still being written, or was when its writer was interrupted."""


def canonical_json(value: Any) -> str:
    """Serialise so that equal values give equal text: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any) -> str:
    """SHA-256 of a value's canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_text(path: Path, text: str, *, is_flushed: bool = True) -> None:
    """Replace `path` by `text` in one step: readers see the old file or the new one.

    Args:
        path: The file.
        text: Its content.
        is_flushed: Whether it must outlive a loss of power; what can be made again need not.
    """
    write_bytes(path, text.encode("utf-8"), is_flushed=is_flushed)


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by indented JSON in one step."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n")


def write_bytes(path: Path, content: bytes, *, is_flushed: bool = True) -> None:
    """Replace `path` by `content` in one step; `is_flushed` as in `write_text`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{PARTIAL}{path.name}-{uuid.uuid4().hex[:8]}")
    try:
        with partial.open("wb") as stream:
            stream.write(content)
            if is_flushed:
                stream.flush()
                os.fsync(stream.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        DataError: It is missing or damaged.
    """
    with reading(path, DataError):
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DataError(f"{path}: no such file") from None
        except ValueError as error:  # damaged JSON or text, or a number of thousands of digits
            raise DataError(f"{path}: damaged JSON ({error}); delete it and run again") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds one object.

    Raises:
        DataError: It is missing or damaged, or holds anything else.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected one JSON object, found a {type(content).__name__}")
    return content


def is_folder(path: Path) -> bool:
    """Tell whether there is a folder; a path that no system allows, say a long one, is none."""
    return os.path.isdir(path)  # noqa: PTH112 - `Path.is_dir` raises there


def expanded(path: Path | str) -> Path:
    """Return a path with `~` or `~NAME` at its beginning replaced by that user's folder.

    Raises:
        ConfigError: There is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        user = Path(path).parts[0]
        raise ConfigError(f"{path}: no home folder for '{user}'; write the path in full") from None


@contextmanager
def complete_folder(path: Path, **manifest: Any) -> Iterator[Path]:
    """Yield an empty folder that becomes `path`, all at once, when the block ends well.

    The manifest (`manifest.json`: SHA-256 and size of every file, plus `manifest`'s fields) is
    written last; then the folder is flushed and renamed. If `path` is complete when the block
    ends, the new content is dropped: names are content identities, so both are the same. What
    stands there incomplete is replaced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{PARTIAL}{path.name}-{uuid.uuid4().hex[:8]}")
    partial.mkdir()
    try:
        yield partial
        seal_folder(partial, **manifest)
        if is_complete(path):
            return
        if path.exists():
            shutil.rmtree(path)
        partial.replace(path)
        _flush_folder(path.parent)
    finally:
        if partial.exists():
            shutil.rmtree(partial)


def seal_folder(folder: Path, **manifest: Any) -> None:
    """Flush every file of a folder and write the manifest that declares it complete."""
    files = {}
    for file in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST):
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
        name = file.relative_to(folder).as_posix()
        files[name] = {"bytes": file.stat().st_size, "sha256": file_sha256(file)}
    write_json(folder / MANIFEST, {**manifest, "files": files})


def is_complete(folder: Path) -> bool:
    """Tell whether a folder has its completion record."""
    return (folder / MANIFEST).is_file()


def complete_names(folder: Path) -> set[str]:
    """Return the names of the complete folders below one: of all, not one by one."""
    if not folder.is_dir():
        return set()
    return {entry.name for entry in folder.iterdir() if is_complete(entry)}


def verify_folder(folder: Path, *, remedy: str) -> dict[str, Any]:
    """Check every file of a complete folder against its manifest, and return the manifest.

    Args:
        folder: Written by `complete_folder`.
        remedy: What to do about damage; ends the message.

    Raises:
        CheckpointError: A file is missing, truncated or changed.
    """
    if not is_complete(folder):
        raise CheckpointError(f"{folder}: incomplete (no {MANIFEST}); {remedy}")
    try:
        manifest = read_json(folder / MANIFEST)
        files = {
            name: (entry["bytes"], entry["sha256"]) for name, entry in manifest["files"].items()
        }
    except (DataError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{folder / MANIFEST}: damaged; {remedy}") from None
    for name, (num_bytes, sha256) in files.items():
        file = folder / name
        if not file.is_file():
            raise CheckpointError(f"{file}: missing; {remedy}")
        size = file.stat().st_size
        if size != num_bytes:
            raise CheckpointError(
                f"{file}: truncated or grown ({size} bytes, expected {num_bytes}); {remedy}"
            )
        if file_sha256(file) != sha256:
            raise CheckpointError(f"{file}: damaged (SHA-256 differs from {MANIFEST}); {remedy}")
    return manifest


def remove_partials(folder: Path, name: str = "") -> None:
    """Delete what interrupted writers of `name` (of anything, when empty) left below `folder`."""
    for leftover in folder.glob(f"{PARTIAL}{name}*"):
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
