"""Output folders that appear whole or not at all, and never in place of another."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from biphasic.errors import ConfigError


def refuse_existing(path: Path) -> None:
    """Refuse a place where something is already.

    Raises:
        ConfigError: It is.
    """
    if path.exists() or path.is_symlink():
        raise ConfigError(f"{path}: already there; choose another folder, or delete it")


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
