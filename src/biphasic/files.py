"""Atomic writes of files, hashes, JSON, and paths."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import uuid
from pathlib import Path
from typing import Any

from biphasic.errors import (
    REPAIR,
    ConfigError,
    DataError,
    is_system_fault,
    naming,
    reading,
    refuse_newer,
    repeated,
)

PARTIAL = ".partial-"  # prefix of unfinished files and folders
# Files of an adapter in peft's format.
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
BASE, ADAPTER = "base", "adapter"  # folders of an export whose adapter is apart


def canonical_json(value: Any) -> str:
    """Serialise to canonical JSON: sorted keys, no spaces, no NaN. Equal values give equal text."""
    # Identities hash this text, so the order in which settings were written must not matter.
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any) -> str:
    """SHA-256 of a value's canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with naming(path), path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_text(path: Path, text: str, *, is_flushed: bool = True) -> None:
    """Replace `path` by `text` atomically: readers see the old file or the new one.

    A flushed file survives a power loss; `store.complete_folder` flushes all files at its end.
    """
    write_bytes(path, text.encode("utf-8"), is_flushed=is_flushed)


def write_json(path: Path, value: Any, *, is_flushed: bool = True) -> None:
    """Replace `path` by indented JSON atomically; `is_flushed` as in `write_text`."""
    text = json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n"
    write_text(path, text, is_flushed=is_flushed)


def write_bytes(path: Path, content: bytes, *, is_flushed: bool = True) -> None:
    """Replace `path` by `content` atomically; `is_flushed` as in `write_text`."""
    # A process that is killed while it writes leaves this name, and the old file whole.
    partial = partial_path(path)
    try:
        with naming(path), partial.open("wb") as stream:
            stream.write(content)
            if is_flushed:
                stream.flush()
                os.fsync(stream.fileno())
        partial.replace(path)
        if is_flushed:
            flush(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def partial_path(path: Path) -> Path:
    """Return a new name beside a path, for what is renamed to it; its folder is made if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A random end, as two processes may write the same file; the name, so that each leftover can be
    # told from the others'.
    return path.with_name(f"{PARTIAL}{path.name}-{uuid.uuid4().hex[:8]}")


def read_json(path: Path, *, remedy: str = REPAIR) -> Any:
    """Read a JSON file."""
    with reading(path, DataError, remedy=remedy):
        try:
            # People write some of them, with programs that begin UTF-8 with a byte order mark.
            content = json_value(path.read_text(encoding="utf-8-sig"))
        except FileNotFoundError:
            raise DataError(f"no such file; {remedy}", about=str(path)) from None
        except ValueError as invalid:  # invalid JSON or UTF-8, or a number with too many digits
            raise DataError(f"damaged JSON ({invalid}); {remedy}", about=str(path)) from None
    refuse_newer(content, str(path))
    return content


def json_value(text: str) -> Any:
    """Parse JSON text; a repeated key is refused, as its last value would replace the others."""
    # As `_DECODER.decode`, which needs a third of its time to look for white space around a line.
    value, end = _DECODER.raw_decode(text, len(text) - len(text.lstrip(_SPACE)))
    if rest := text[end:].lstrip(_SPACE):
        raise json.JSONDecodeError("Extra data", text, len(text) - len(rest))
    # JSON can spell half of a surrogate pair, which no UTF-8 file can hold: writing it would fail
    # much later.
    if "\\u" in text and ("\\ud" in text or "\\uD" in text):
        for key, item in value.items() if isinstance(value, dict) else [("", value)]:
            try:
                json.dumps([key, item], ensure_ascii=False).encode("utf-8")
            except UnicodeEncodeError:
                place = f" in {key!a}" if key else ""
                raise ValueError(f"an unpaired surrogate{place}, \\ud800 to \\udfff") from None
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # `json` keeps the last of equal keys in silence.
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError(f"the key '{repeated(key for key, _ in pairs)[0]}' is repeated")
    return value


_SPACE = " \t\n\r"
_DECODER = json.JSONDecoder(object_pairs_hook=_distinct)  # `json.loads` would make one a call


def read_json_object(path: Path, *, remedy: str = REPAIR) -> dict[str, Any]:
    """Read a JSON file with one object; `remedy` as in `read_json`."""
    content = read_json(path, remedy=remedy)
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise DataError(f"{path}: expected a JSON object, found a {kind}; {remedy}")
    return content


def is_file(path: Path) -> bool:
    """Return whether a path is a file; an error of the system is raised, as it answers neither."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError as error:
        if is_system_fault(error):
            raise
        return False
    except ValueError:  # a null character, which no path has
        return False


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder; False for invalid paths, e.g. too long ones."""
    return os.path.isdir(path)  # noqa: PTH112 - `Path.is_dir` raises there


def expanded(path: Path | str) -> Path:
    """Return a path with a leading `~` or `~NAME` replaced by that user's home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        user = Path(path).parts[0]
        raise ConfigError(f"{path}: no home folder for '{user}'; write the path in full") from None


def refuse_file(path: Path) -> None:
    """Raise a DataError for a file in place of a model's folder; GGUF has to be converted."""
    if path.suffix.lower() == ".gguf" and path.is_file():
        raise DataError(
            f"{path}: a GGUF file; convert it to a folder first: load it in transformers with "
            f"from_pretrained('{path.parent}', gguf_file='{path.name}'), then save_pretrained "
            "(docs/adapt.md has the lines)"
        )
    if is_file(path):
        raise DataError(f"{path}: a file, not the folder of a model or tokenizer")


def refuse_adapter(folder: Path) -> None:
    """Raise a DataError for a model's folder with an adapter, such as LoRA's: how to merge it."""
    # No identity covers it, and transformers loads it with the weights if peft is installed.
    for name in ADAPTER_FILES:
        if (folder / name).is_file():
            raise DataError(
                f"{folder}: has an adapter ({name}), which biphasic does not load; merge it with "
                "peft (merge_and_unload, then save_pretrained into another folder), or move its "
                "files away to use the model without it"
            )
    if (folder / ADAPTER / ADAPTER_FILES[0]).is_file() and not is_file(folder / "config.json"):
        raise DataError(
            f"{folder}: an adapter beside its base, which biphasic does not load; give the state "
            f"that it was exported from, or {folder / BASE} for the model without it"
        )


def remove(path: Path) -> None:
    """Delete a file or a folder, which no longer looks finished midway; links are not followed."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    # Renamed first: if the deletion stops midway, the rest must not look like a whole artifact.
    leftover = path.with_name(f"{PARTIAL}{uuid.uuid4().hex}")
    path.rename(leftover)
    shutil.rmtree(leftover)


def remove_partials(folder: Path, name: str = "") -> None:
    """Delete leftovers of interrupted writers of `name` (of anything, if empty) in `folder`."""
    pattern = re.compile(rf"{re.escape(PARTIAL + name)}-\w{{8}}" if name else ".*")
    for leftover in folder.glob(f"{PARTIAL}*"):
        if pattern.fullmatch(leftover.name):
            remove(leftover)


def flush(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
