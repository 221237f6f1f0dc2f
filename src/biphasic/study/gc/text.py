"""The output of `study clean`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from biphasic.study.gc.clean import Cleaning
from biphasic.study.gc.garbage import Item

_MOST = 12
_WORTH_NAMING = frozenset({"states", "checkpoints", "corpora", "tasks"})


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
