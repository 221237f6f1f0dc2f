"""Unreachable items of a store, by kind."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from biphasic.errors import CheckpointError, DataError, StudyError
from biphasic.files import PARTIAL, is_complete, read_json
from biphasic.study.gc.reachable import Reachable, corpus_hash
from biphasic.training.state import read_state_record

_OLD_LOCKS = ("claims", "locks")
"""Folders in which earlier versions kept their locks."""
_OLD_LOCK_DAYS = 1
_BUILTIN = "builtin-"
EVENT_FILES = "tensorboard"
_SHORT_IDENTITY = 12
_LONGEST_NAME = 80


def event_folder(store: Path, identity: str, *, name: str) -> Path:
    """Return the folder of event files of a run outside of studies, with a readable name."""
    return store / EVENT_FILES / f"{name[:_LONGEST_NAME]}-{identity[:_SHORT_IDENTITY]}"


def has_state(folder: Path, states: Collection[str]) -> bool:
    """Return whether event files belong to one of these states; old names are full identities."""
    short = folder.name.rpartition("-")[2]
    return folder.name in states or any(
        state.startswith(short) for state in states if len(short) == _SHORT_IDENTITY
    )


@dataclass(frozen=True)
class Item:
    """A file or folder that could be deleted.

    Attributes:
        kind: Heading under which it is listed.
        about: Human-readable description; empty if unknown.
    """

    kind: str
    path: Path
    num_bytes: int
    about: str = ""


def useless_items(
    store: Path, folders: Iterable[Path], reachable: Reachable, *, also_foreign: bool
) -> list[Item]:
    """Return unreachable items of a store, and leftovers in the folders of its studies.

    Results are listed before their states: a result without its state would look like a result of
    an external model. With `also_foreign`, results of models that are not states of the store are
    included.

    Raises:
        StudyError: A folder of the store is a link that leads out of it.
    """
    items = [
        *_results(store, reachable, also_foreign=also_foreign),
        *_checkpoints(store, reachable),
        *(
            _item("states", path, _describe_state(path))
            for path in entries(store / "states")
            if path.name not in reachable.states
        ),
        *(
            _item("corpora", path)
            for path in entries(store / "data")
            if not _is_corpus_reachable(path, reachable)
        ),
        *_tasks(store, reachable),
        *(
            _item("event files", path)
            for path in entries(store / EVENT_FILES)
            if not has_state(path, reachable.states)
        ),
        *(
            _item("job files", path)
            for path in entries(store / "jobs")
            if not _is_job_reachable(path, store, reachable)
        ),
        *_old_locks(store),
    ]
    deleted = {item.path for item in items}
    return [*items, *_leftovers([store, *folders], deleted)]


def size(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder; links count as themselves."""
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            total += os.lstat(f"{folder}/{name}").st_size
    return total


def entries(folder: Path) -> Iterator[Path]:
    """Yield the sorted entries of a folder, except links and leftovers.

    Raises:
        StudyError: The folder itself is a link.
    """
    if folder.is_symlink():
        raise StudyError(
            f"{folder}: is a link, and others may use its target, so nothing was deleted; replace "
            "it by a folder, or clean the root that it points to"
        )
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            if not path.is_symlink() and not path.name.startswith(PARTIAL):
                yield path


def _item(kind: str, path: Path, about: str = "") -> Item:
    return Item(kind, path, size(path), about)


def _describe_state(path: Path) -> str:
    if not is_complete(path) or not (path / "state.json").is_file():
        return "incomplete"
    try:
        state = read_state_record(path)
    except CheckpointError:
        return "damaged"
    phases = (f"{entry.objective} {entry.steps:,}" for entry in state.ledger)
    return f"step {state.step:,}: {', '.join(phases)}"


def _checkpoints(store: Path, reachable: Reachable) -> Iterator[Item]:
    for path in entries(store / "progress"):
        state, _, _ = path.name.partition("-from-")
        if state not in reachable.states:
            yield _item("checkpoints", path, "of an unreachable state")
        elif is_complete(store / "states" / state):
            yield _item("checkpoints", path, "of a finished state")


def _results(store: Path, reachable: Reachable, *, also_foreign: bool) -> Iterator[Item]:
    for path in entries(store / "finetunes"):
        is_left = not also_foreign and _is_of_other_model(path, store)
        if path.name not in reachable.results and not is_left:
            yield _item("fine-tunings", path)


def _is_of_other_model(path: Path, store: Path) -> bool:
    """Return whether a result is of an external model, which no study uses."""
    record = path / "result.json"
    if not is_complete(path) or not record.is_file():
        return False
    try:
        state = read_json(record)["state"]
    except (DataError, KeyError, TypeError):
        return False
    return not (store / "states" / str(state)).exists()


def _is_corpus_reachable(path: Path, reachable: Reachable) -> bool:
    return (
        bool(reachable.unsure)
        or path.name in reachable.data
        or corpus_hash(path) in reachable.corpora
    )


def _tasks(store: Path, reachable: Reachable) -> Iterator[Item]:
    if reachable.unsure:
        return
    for path in entries(store / "tasks"):
        if path.name not in reachable.tasks:
            yield _item("tasks", path, "built-in" if path.name.startswith(_BUILTIN) else "")


def _is_job_reachable(path: Path, store: Path, reachable: Reachable) -> bool:
    """Return whether a job is unfinished, or may run again as corpora and reports do."""
    job = path.name.removesuffix(".json")
    if job in reachable.states:
        return not is_complete(store / "states" / job)
    if job in reachable.groups:
        return True
    try:
        described = read_json(path)
        if described["kind"] == "tokenise":
            return _is_corpus_reachable(Path(described["folder"]), reachable)
        return described["kind"] == "report" and described["study"] in reachable.studies
    except (DataError, KeyError, TypeError):
        return False  # an unknown version; planning rewrites jobs


def _old_locks(store: Path) -> Iterator[Item]:
    for path in (path for folder in _OLD_LOCKS for path in entries(store / folder)):
        # An earlier version that still runs touches its lock every twenty seconds.
        files = path.iterdir() if path.is_dir() else (path,)
        changed = max((file.lstat().st_mtime for file in files), default=0.0)
        if time.time() - changed > _OLD_LOCK_DAYS * 86400:
            yield _item("locks", path, "of an earlier version")


def _leftovers(places: Iterable[Path], deleted: set[Path]) -> Iterator[Item]:
    """Yield leftovers of interrupted writers, two folders deep, outside of deleted folders."""
    for place in places:
        for path in sorted({*place.glob(f"{PARTIAL}*"), *place.glob(f"*/{PARTIAL}*"),
                            *place.glob(f"*/*/{PARTIAL}*")}):  # fmt: skip
            is_linked = any(p.is_symlink() for p in (path, path.parent, path.parent.parent))
            if not is_linked and not deleted & set(path.parents):
                yield _item("leftovers", path, "of an interrupted writer")
