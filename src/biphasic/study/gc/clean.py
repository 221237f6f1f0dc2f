"""`biphasic study clean`: list or delete items of a store that no study needs, by kind.

Nothing is deleted while another process works in the store. Each item is renamed before it is
deleted, so an interruption never leaves a damaged item that looks finished.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from biphasic.amounts import size
from biphasic.errors import CheckpointError, DataError
from biphasic.files import PARTIAL, read_json, remove
from biphasic.locks import LOCK, Say, find_owner, lock_cleaning, refuse_locked, refuse_running_work
from biphasic.store import (
    BUILTIN,
    FINETUNES,
    OVERLAPS,
    STATES,
    STORE,
    is_complete,
    is_trained,
    read_result_record,
    read_state_record,
    state_folder,
)
from biphasic.study.by_name import BY_NAME, drop_dangling
from biphasic.study.find import study_folders
from biphasic.study.gc.pins import EVENT_FILES, Pin, forget_pin, has_state, read_pins
from biphasic.study.gc.reachable import Reachable, add_ancestors, add_pins, add_study, corpus_hash

_MOST = 12
_WORTH_NAMING = frozenset({"states", "checkpoints", "corpora", "tasks"})


@dataclass(frozen=True)
class Item:
    """A file or folder that could be deleted."""

    kind: str  # Heading under which it is listed.
    path: Path
    num_bytes: int
    about: str = ""  # Human-readable description; empty if unknown.


@dataclass(frozen=True)
class Cleaning:
    """Items to delete, or deleted."""

    root: Path
    studies: tuple[str, ...]  # Names of the studies of the root.
    items: tuple[Item, ...]  # Items that no study needs.
    kept: tuple[Item, ...]  # Items kept only because a call outside of studies pinned them.
    pins: tuple[Pin, ...]  # Pins to delete with their items.
    unsure: tuple[str, ...]  # Why corpora and tasks are excluded; empty if they are included.


def clean(
    root: Path, *, delete: bool = False, also_pretrained: bool = False, say: Say | None = None
) -> Cleaning:
    """Find items that no study of a root needs, and optionally delete them."""
    root = root.resolve()
    store = root / STORE
    if store.is_symlink():
        raise DataError(
            f"{store}: is a link, and studies elsewhere may use its target; clean the root that "
            "it points to"
        )
    if not store.is_dir():
        raise DataError(f"{store}: no such folder, so there is nothing to clean; give a --root")
    if not delete:
        _refuse_running(root, store, say)
        return _look(root, also_pretrained=also_pretrained)
    with lock_cleaning(store) as cleaner:
        _refuse_running(root, store, say)
        cleaning = _look(root, also_pretrained=also_pretrained)
        for item in cleaning.items:
            cleaner.check()  # after a suspension, another process may work here
            remove(item.path)
        for pin in cleaning.pins:
            cleaner.check()
            forget_pin(store, pin.id)
        drop_dangling(store)
    return cleaning


def _refuse_running(root: Path, store: Path, say: Say | None) -> None:
    # All folders: a starting study has a lock before it has settings.
    for folder in sorted(root.iterdir()):
        if find_owner(folder / LOCK) is not None:
            cancel = f"wait for it, or 'biphasic study cancel {folder.name}'"
            refuse_locked(folder / LOCK, f"{folder}: this study is running", cancel, say=say)
    refuse_running_work(store, say=say)


def _look(root: Path, *, also_pretrained: bool) -> Cleaning:
    store, folders = root / STORE, study_folders(root)
    reachable = Reachable()
    for folder in folders:
        add_study(reachable, folder)
    add_ancestors(reachable, store)
    of_no_study = _useless_items(store, folders, reachable, also_foreign=True)
    pins = read_pins(store)
    add_pins(reachable, pins, store)
    unreachable = _useless_items(store, folders, reachable, also_foreign=False)
    kept = {item.path: item for item in of_no_study}
    for item in unreachable:
        kept.pop(item.path, None)
    return Cleaning(
        root=root,
        studies=tuple(folder.name for folder in folders),
        items=tuple(of_no_study if also_pretrained else unreachable),
        kept=() if also_pretrained else tuple(kept.values()),
        pins=pins if also_pretrained else (),
        unsure=tuple(reachable.unsure),
    )


def _useless_items(
    store: Path, folders: Iterable[Path], reachable: Reachable, *, also_foreign: bool
) -> list[Item]:
    """Return unreachable items of a store, and leftovers in the folders of its studies."""
    # Results come before their states: a result without its state would look like a result of an
    # external model, which is kept unless `also_foreign`.
    items = [
        *_unreachable_work(store, reachable, also_foreign=also_foreign),
        *_unreachable_inputs(store, reachable),
    ]
    deleted = {item.path for item in items}
    return [*items, *_leftovers([store, *folders], deleted)]


def _unreachable_work(store: Path, reachable: Reachable, *, also_foreign: bool) -> Iterator[Item]:
    for path in _entries(store / FINETUNES):
        is_left = not also_foreign and _is_of_other_model(path, store)
        if path.name not in reachable.results and not is_left:
            yield _item("fine-tunings", path)
    for path in _entries(store / "progress"):
        state, _, _ = path.name.partition("-from-")
        if state not in reachable.states:
            yield _item("checkpoints", path, "of an unreachable state")
        elif is_trained(store, state):
            yield _item("checkpoints", path, "of a finished state")
    for path in _entries(store / STATES):
        if path.name not in {*reachable.states, BY_NAME}:
            yield _item("states", path, _describe_state(path))


def _unreachable_inputs(store: Path, reachable: Reachable) -> Iterator[Item]:
    """Yield corpora and tasks, event files and job files."""
    for path in _entries(store / "data"):
        if not _is_corpus_reachable(path, reachable):
            yield _item("corpora", path)
    for path in () if reachable.unsure else _entries(store / "tasks"):
        if path.name not in reachable.tasks:
            yield _item("tasks", path, "built-in" if path.name.startswith(BUILTIN) else "")
    for path in () if reachable.unsure else _entries(store / OVERLAPS):
        if path not in reachable.overlaps:
            yield _item("counts of test examples", path)
    for path in _entries(store / EVENT_FILES):
        if not has_state(path, reachable.states):
            yield _item("event files", path)
    for path in _entries(store / "jobs"):
        if not _is_job_reachable(path, store, reachable):
            yield _item("job files", path)


def _entries(folder: Path) -> Iterator[Path]:
    """Yield the sorted entries of a folder, except links and leftovers."""
    if folder.is_symlink():
        raise DataError(
            f"{folder}: is a link, and others may use its target, so nothing was deleted; replace "
            "it by a folder, or clean the root that it points to"
        )
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            if not path.is_symlink() and not path.name.startswith(PARTIAL):
                yield path


def _item(kind: str, path: Path, about: str = "") -> Item:
    """Return an item with its bytes; links count as themselves."""
    if path.is_symlink() or not path.is_dir():
        return Item(kind, path, path.lstat().st_size, about)
    files = (f"{folder}/{name}" for folder, _, names in os.walk(path) for name in names)
    return Item(kind, path, sum(os.lstat(file).st_size for file in files), about)


def _describe_state(path: Path) -> str:
    if not is_complete(path):
        return "incomplete"
    try:
        state = read_state_record(path, identity=path.name)
    except CheckpointError:
        return "damaged"
    phases = (f"{entry.objective} {entry.steps:,}" for entry in state.ledger)
    return f"step {state.step:,}: {', '.join(phases)}"


def _is_of_other_model(path: Path, store: Path) -> bool:
    """Return whether a result is of an external model, which no study uses."""
    try:
        state = read_result_record(path).state
    except CheckpointError:
        return False
    return not state_folder(store, state).exists()


def _is_corpus_reachable(path: Path, reachable: Reachable) -> bool:
    is_named = bool(reachable.unsure) or path.name in reachable.data
    return is_named or corpus_hash(path) in reachable.corpora


def _is_job_reachable(path: Path, store: Path, reachable: Reachable) -> bool:
    """Return whether a job is unfinished, or may run again as corpora and reports do."""
    job = path.name.removesuffix(".json")
    if job in reachable.states:
        return not is_trained(store, job)
    if job in reachable.groups:
        return True
    try:
        described = read_json(path)
        if described["kind"] == "tokenise":
            return _is_corpus_reachable(Path(described["folder"]), reachable)
        return described["kind"] == "report" and described["study"] in reachable.studies
    except (DataError, KeyError, TypeError):
        return False  # an unknown version; planning rewrites jobs


def _leftovers(places: Iterable[Path], deleted: set[Path]) -> Iterator[Item]:
    """Yield leftovers of interrupted writers, two folders deep, outside of deleted folders."""
    for place in places:
        for path in sorted({*place.glob(f"{PARTIAL}*"), *place.glob(f"*/{PARTIAL}*"),
                            *place.glob(f"*/*/{PARTIAL}*")}):  # fmt: skip
            is_linked = any(p.is_symlink() for p in (path, path.parent, path.parent.parent))
            if not is_linked and not deleted & set(path.parents):
                yield _item("leftovers", path, "of an interrupted writer")


def cleaning_lines(cleaning: Cleaning, *, deleted: bool) -> Iterator[str]:
    """Yield the lines that describe a cleaning."""
    studies = ", ".join(cleaning.studies) or "none"
    yield f"studies of {cleaning.root}: {studies}"
    for problem in cleaning.unsure:
        yield f"  all corpora and tasks are kept: {problem}"
    if not cleaning.items:
        yield "nothing to delete: studies or pins need everything else"
    else:
        yield "deleted:" if deleted else "no study needs:"
        yield from _table(cleaning.items)
    if cleaning.kept:
        yield "kept, pinned by pretrain, adapt, evaluate or finetune (--also-pretrained deletes):"
        yield from _table(cleaning.kept)
    if cleaning.items and not deleted:
        yield "nothing was deleted; add --delete to delete these items"


def _table(items: Sequence[Item]) -> Iterator[str]:
    kinds = dict.fromkeys(item.kind for item in items)
    for kind in kinds:
        of_kind = [item for item in items if item.kind == kind]
        yield _row(kind, of_kind)
        if kind in _WORTH_NAMING:
            yield from _names(of_kind)
    if len(kinds) > 1:
        yield _row("all", items)


def _row(name: str, items: Sequence[Item]) -> str:
    return f"  {name:<14}{len(items):>8,}  {size(sum(item.num_bytes for item in items)):>10}"


def _names(items: Sequence[Item]) -> Iterator[str]:
    largest = sorted(items, key=lambda item: -item.num_bytes)
    for item in largest[:_MOST]:
        about = f"  {item.about}" if item.about else ""
        head, separator, tail = item.path.name.partition("-from-")
        yield f"    {head[:12] + separator + tail:<20}{size(item.num_bytes):>10}{about}"
    if len(items) > _MOST:
        yield f"    and {len(items) - _MOST:,} smaller ones"
