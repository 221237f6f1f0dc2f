"""Readable names of states (links `store/states/by-name/STUDY/ARM`), and pins (`store/pins/`).

`pretrain`, `adapt`, `evaluate` and `finetune` write to the shared store. No study refers to their
results, so they write a pin before they start, which protects them from cleaning. Event files of
their trainings are in a folder whose name ends with the state's short identity.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from biphasic.errors import DataError
from biphasic.files import partial_path, read_json, read_json_object, write_text
from biphasic.locks import Say
from biphasic.records import Record, parse_record
from biphasic.store import CORPUS, FOUND, RESULT, STATE, Key, Store

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
    """Delete links to states, and notes of found data, that are gone; and folders without links."""
    for folder in sorted((store / STATE.place / BY_NAME).glob("*/")):
        for link in folder.iterdir():
            if link.is_symlink() and not link.exists():
                link.unlink()
        if not any(folder.iterdir()):
            folder.rmdir()
    for note in sorted((store / FOUND).glob("*.json")):
        found = ""
        with suppress(DataError):  # a damaged one tells nothing
            found = str(read_json_object(note).get("folder", ""))
        if not (found and (store / found).exists()):
            note.unlink()


EVENT_FILES = "tensorboard"
_FOLDER = "pins"


class Pin(Record):
    """The results of one call."""

    format: Literal["biphasic.pin/1"] = "biphasic.pin/1"
    id: str  # Identity of the final state, or of the group of fine-tunings.
    made_by: str  # Name of the command.
    name: str = ""  # Name of the encoder that `evaluate` was given, which `analyze` shows.
    states: tuple[str, ...] = ()  # States that it produces.
    results: tuple[str, ...] = ()  # Fine-tunings.
    data: tuple[str, ...] = ()  # Folders of `store/data/` that it reads.

    def protected(self) -> Iterator[Key]:
        """Yield what it protects."""
        for kind, names in ((STATE, self.states), (RESULT, self.results), (CORPUS, self.data)):
            yield from ((kind, name) for name in names)


def record_pin(
    store: Path,
    identity: str,
    *,
    made_by: str,
    name: str = "",
    states: Iterable[str] = (),
    results: Iterable[str] = (),
    data: Iterable[Path] = (),
) -> None:
    """Write a pin, or extend an existing one."""
    path = pin_path(store, identity)
    known = Pin(id=identity, made_by=made_by)
    if path.is_file():
        with suppress(DataError):  # a damaged one is rewritten
            known = _read(path)
    corpora = [
        folder.relative_to(store / "data").parts[0]
        for folder in data
        if store / "data" in folder.parents
    ]
    pin = Pin(
        id=identity,
        made_by=made_by,
        name=name or known.name,
        states=_union(known.states, states),
        results=_union(known.results, results),
        data=_union(known.data, corpora),
    )
    if pin != known or not path.is_file():
        write_text(path, pin.model_dump_json(indent=1) + "\n")


def read_pins(store: Path) -> tuple[Pin, ...]:
    """Read all pins."""
    return tuple(map(_read, sorted((store / _FOLDER).glob("*.json"))))


def has_state(folder: Path, states: Collection[str]) -> bool:
    """Return whether event files belong to one of these states."""
    short = folder.name.rpartition("-")[2]
    return len(short) == SHORT_IDENTITY and any(state.startswith(short) for state in states)


def _read(path: Path) -> Pin:
    try:
        return parse_record(Pin, read_json(path), where=str(path))
    except DataError:
        raise DataError(
            f"{path}: damaged; this pin protects results made outside of studies from 'study "
            "clean'. Run the same command again to rewrite it, or delete it if the results are no "
            "longer needed"
        ) from None


def pin_path(store: Path, identity: str) -> Path:
    """Return the file of a pin."""
    return store / _FOLDER / f"{identity}.json"


def _union(known: tuple[str, ...], more: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*known, *more)))
