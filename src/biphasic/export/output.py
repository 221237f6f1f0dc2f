"""Output folders that are created atomically and never replace another.

A comment in the model card of a finished folder holds hashes of its inputs and of its other files,
by which a second export finds it complete; only the card may be edited.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from biphasic.errors import PERMIT, ConfigError
from biphasic.files import canonical_json, digest, partial_path, write_text
from biphasic.store import CARD, EXPORT, file_entries, publish_folder
from biphasic.version import __version__

# Marks fields of the card's front matter that the user has to fill in.
FILL_IN = "# to fill in"


def refuse_existing(path: Path) -> None:
    """Raise an error if a path exists, or nothing can be created there."""
    if path.exists() or path.is_symlink():
        raise ConfigError(f"{path}: already exists; choose another folder, or delete it")
    above = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    if not above.is_dir():
        what = "a file, not a folder" if above.exists() else "a link to nothing"
        raise ConfigError(f"{path}: {above} is {what}; choose another folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise ConfigError(f"{path}: {above} is not writable; choose another folder, or {PERMIT}")


def sign(folder: Path, inputs: Mapping[str, Any], **results: float) -> None:
    """Record in a folder's model card a hash of its inputs, its files, and numbers for later."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path != folder / CARD)
    files = file_entries(folder, paths)
    note = canonical_json({"inputs": _hash(inputs), "files": files, **results})
    text = (folder / CARD).read_text(encoding="utf-8")
    write_text(folder / CARD, f"{text.rstrip()}\n\n<!-- biphasic {note} -->\n")


def find_made(path: Path, inputs: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """Return the note of an intact folder made from `inputs` (None: any); None without one."""
    if not EXPORT.is_sealed(path):
        refuse_existing(path)
        return None
    remedy = "delete the folder and run again, or choose another folder"
    made = EXPORT.open(path, remedy=remedy)
    note = made.manifest
    if inputs is not None and note.get("inputs") != _hash(inputs):
        raise ConfigError(
            f"{path}: already exists, made from another model, text or settings; choose another "
            "folder, or delete it"
        )
    if inputs is not None:
        made.verify()
    return note


def _hash(inputs: Mapping[str, Any]) -> str:
    return digest({"biphasic": __version__, **inputs})


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder; rename it to `path` on success, remove it otherwise."""
    # Without the manifest of `files.complete_folder`: users may edit their exports.
    refuse_existing(path)
    partial = partial_path(path)
    partial.mkdir()
    try:
        yield partial
        refuse_existing(path)
        publish_folder(partial, path)
    finally:
        if partial.exists():
            shutil.rmtree(partial)
