"""The folders of a root: its studies, and the store of states and fine-tunings that they share."""

from __future__ import annotations

from pathlib import Path

from biphasic.files import expanded, is_complete

DEFAULT_ROOT = "runs"  # Folder of studies and their shared store.
STORE = "store"  # Folder with the states, results and jobs of all studies of a root.
STATES, FINETUNES, OVERLAPS = "states", "finetunes", "overlaps"  # Folders of a store.
BUILTIN = "builtin-"  # Beginning of the names of folders of built-in tasks.


def store_of(root: Path | str) -> Path:
    """Return the store of a root."""
    return expanded(root).resolve() / STORE


def state_folder(store: Path, identity: str) -> Path:
    """Return the folder of a state."""
    return store / STATES / identity


def is_trained(store: Path, identity: str) -> bool:
    """Return whether a store has a state."""
    return is_complete(state_folder(store, identity))


def result_folder(store: Path, identity: str) -> Path:
    """Return the folder of a fine-tuning."""
    return store / FINETUNES / identity
