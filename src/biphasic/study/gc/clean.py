"""`biphasic study clean`: list or delete items of a store that no study needs.

Nothing is deleted while another process works in the store. Each item is renamed before it is
deleted, so an interruption never leaves a damaged item that looks finished.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from biphasic.errors import LockedError, LockHeldError, StudyError
from biphasic.files import PARTIAL
from biphasic.locks import LEASES, LOCK, find_owner, lock, lock_cleaning, running_work
from biphasic.study.find import study_folders
from biphasic.study.gc.garbage import EVENT_FILES, Item, entries, has_state, useless_items
from biphasic.study.gc.pins import Pin, forget_pin, read_pins
from biphasic.study.gc.reachable import add_pins, reachable_from_studies
from biphasic.study.paths import STORE

Say = Callable[[str], None]
_MOST = 12
_WORTH_NAMING = frozenset({"states", "checkpoints", "corpora", "tasks"})


@dataclass(frozen=True)
class Cleaning:
    """Items to delete, or deleted.

    Attributes:
        studies: Names of the studies of the root.
        items: Items that no study needs.
        kept: Items kept only because a call outside of studies pinned them.
        pins: Pins to delete with their items.
        unsure: Why corpora and tasks are excluded; empty if they are included.
    """

    root: Path
    studies: tuple[str, ...]
    items: tuple[Item, ...]
    kept: tuple[Item, ...]
    pins: tuple[Pin, ...]
    unsure: tuple[str, ...]


def clean(
    root: Path, *, delete: bool = False, also_pretrained: bool = False, say: Say | None = None
) -> Cleaning:
    """Find items that no study of a root needs, and optionally delete them.

    With `also_pretrained`, items that only `pretrain`, `adapt`, `evaluate` or `finetune` pinned are
    included. `say` receives a message before waiting for the heartbeat of another machine.

    Raises:
        StudyError: There is no store, a link leads out of it, or a study cannot be read.
        LockedError: Another process works in the store.
        DataError: A record is damaged.
    """
    root = root.resolve()
    store = root / STORE
    if store.is_symlink():
        raise StudyError(
            f"{store}: is a link, and studies elsewhere may use its target; clean the root that "
            "it points to"
        )
    if not store.is_dir():
        raise StudyError(f"{store}: no such folder, so there is nothing to clean; give a --root")
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
    return cleaning


def remove(path: Path) -> None:
    """Delete a file or a folder; links are not followed."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    leftover = path.with_name(f"{PARTIAL}{uuid.uuid4().hex}")
    path.rename(leftover)  # no longer looks finished
    shutil.rmtree(leftover)


def _refuse_running(root: Path, store: Path, say: Say | None) -> None:
    # All folders: a starting study has a lock before it has settings.
    for folder in sorted(root.iterdir()):
        if find_owner(folder / LOCK) is not None:
            cancel = f"wait for it, or 'biphasic study cancel {folder.name}'"
            _settle(folder / LOCK, f"{folder}: this study is running", cancel, say)
    for name in running_work(store):
        _settle(store / LEASES / name, f"{store}: another process works here", "wait for it", say)


def _settle(path: Path, what: str, remedy: str, say: Say | None) -> None:
    """Refuse if a lock is held; wait to see whether a remote owner's lease has expired."""
    try:
        with lock(path, say=say):
            return
    except LockHeldError as error:
        raise LockedError(f"{what} ({error.owner}); {remedy}") from None


def _look(root: Path, *, also_pretrained: bool) -> Cleaning:
    store, folders = root / STORE, study_folders(root)
    reachable = reachable_from_studies(folders, store)
    of_no_study = useless_items(store, folders, reachable, also_foreign=True)
    pins = _pins(store)
    add_pins(reachable, pins, store)
    unreachable = useless_items(store, folders, reachable, also_foreign=False)
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


def _pins(store: Path) -> tuple[Pin, ...]:
    """Return all pins; earlier versions wrote event files instead of pins."""
    known = read_pins(store)
    states = {state for pin in known for state in pin.states}
    earlier = (path.name for path in entries(store / EVENT_FILES) if not has_state(path, states))
    return (*known, *(Pin(id=name, made_by="pretrain", states=(name,)) for name in earlier))


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
    return f"  {name:<14}{len(items):>8,}  {_size(sum(item.num_bytes for item in items)):>10}"


def _names(items: Sequence[Item]) -> Iterator[str]:
    largest = sorted(items, key=lambda item: -item.num_bytes)
    for item in largest[:_MOST]:
        about = f"  {item.about}" if item.about else ""
        head, separator, tail = item.path.name.partition("-from-")
        yield f"    {head[:12] + separator + tail:<20}{_size(item.num_bytes):>10}{about}"
    if len(items) > _MOST:
        yield f"    and {len(items) - _MOST:,} smaller ones"


def _size(num_bytes: int) -> str:
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.3g} {unit}"
    return f"{num_bytes} B"
