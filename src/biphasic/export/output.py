"""Output folders that appear whole or not at all, and never in place of another.

A finished folder says in a comment of its model card what it was made from, by a hash. Whoever asks
for the same again is told that it is done.
"""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from biphasic import __version__
from biphasic.errors import ConfigError
from biphasic.export.names import CARD
from biphasic.files import canonical_json, digest, write_text

_NOTE = re.compile(r"^<!-- biphasic (\{.*\}) -->$", re.MULTILINE)


def refuse_existing(path: Path) -> None:
    """Refuse a place where something is already.

    Raises:
        ConfigError: It is.
    """
    if path.exists() or path.is_symlink():
        raise ConfigError(f"{path}: already there; choose another folder, or delete it")


def sign(folder: Path, inputs: Mapping[str, Any], **results: float) -> None:
    """Note in a folder's model card what it was made from, and numbers that its maker returns."""
    note = canonical_json({"inputs": _hash(inputs), **results})
    text = (folder / CARD).read_text(encoding="utf-8")
    write_text(folder / CARD, f"{text.rstrip()}\n\n<!-- biphasic {note} -->\n")


def find_made(path: Path, inputs: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """Return the note of a folder that was made from the same; None where nothing is.

    Args:
        path: The folder.
        inputs: All that decides its content; None while that is not known yet.

    Raises:
        ConfigError: Something else is there.
    """
    if not (path.exists() or path.is_symlink()):
        return None
    note = _note(path / CARD)
    if note is None:
        refuse_existing(path)
    elif inputs is not None and note.get("inputs") != _hash(inputs):
        raise ConfigError(
            f"{path}: already there, and made from another model, text or settings; choose another "
            "folder, or delete it"
        )
    return note


def _note(card: Path) -> dict[str, Any] | None:
    """Return what a card says of its inputs; None where it says nothing that can be read."""
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    with suppress(json.JSONDecodeError):
        if found := _NOTE.search(text):
            return json.loads(found[1])
    return None


def _hash(inputs: Mapping[str, Any]) -> str:
    return digest({"biphasic": __version__, **inputs})


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `path` when the block ends well; else it is removed.

    Unlike `files.complete_folder` it leaves no manifest: people may edit what they export.

    Raises:
        ConfigError: Something is at `path` already.
    """
    refuse_existing(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".partial-{path.name}-{uuid.uuid4().hex[:8]}")
    partial.mkdir()
    try:
        yield partial
        refuse_existing(path)
        partial.rename(path)
    finally:
        if partial.exists():
            shutil.rmtree(partial)
