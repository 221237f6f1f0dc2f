"""Readable names of states: links `store/states/by-name/STUDY/ARM`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from biphasic.files import partial_path
from biphasic.locks import Say
from biphasic.store import STATE, Store

BY_NAME = "by-name"
SHORT_IDENTITY = 12
_LONGEST_NAME = 80


def readable_name(recipe: str, identity: str) -> str:
    """Return the name of a run outside of studies, whose recipe's name is not unique."""
    return f"{recipe[:_LONGEST_NAME]}-{identity[:SHORT_IDENTITY]}"


def link_states(store: Path, study: str, states: Mapping[str, str], *, say: Say) -> None:
    """Let a name lead to each finished state; say so if the file system has no links."""
    for name, identity in states.items():
        link, target = store / STATE.place / BY_NAME / study / name, Path("../..", identity)
        # A link that is a folder is of a copy of the store, made by a program that follows links.
        leads_there = link.readlink() == target if link.is_symlink() else link.exists()
        if leads_there or not Store(store).has(STATE, identity):
            continue
        partial = partial_path(link)
        try:
            partial.symlink_to(target)
        except OSError as error:
            say(f"{link.parent}: no links by name, as this file system refuses them: {error}")
            return
        partial.replace(link)  # at once, as other processes may read the old one


def drop_dangling(store: Path) -> None:
    """Delete the links to states that are gone, and folders without links."""
    for folder in sorted((store / STATE.place / BY_NAME).glob("*")):
        for link in folder.iterdir():
            if link.is_symlink() and not link.exists():
                link.unlink()
        if not any(folder.iterdir()):
            folder.rmdir()
