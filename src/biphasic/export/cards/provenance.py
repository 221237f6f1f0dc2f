"""Sources of a state's text, from the records of its corpora."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from biphasic.data.corpus import TEXTS
from biphasic.errors import DataError
from biphasic.files import read_json
from biphasic.records import StateRecord

_CORPUS = "corpus.json"


@dataclass(frozen=True)
class TextSource:
    """A part of a corpus.

    Attributes:
        name: Such as `hf:OWNER/NAME` or a folder's name.
        tokens: Number of tokens, without special tokens.
        licenses: Number of documents by license; empty if the source states none.
    """

    name: str
    documents: int
    tokens: int
    licenses: Mapping[str, int]


@dataclass(frozen=True)
class CorpusFacts:
    """A corpus that a state was trained on.

    Attributes:
        content_hash: Hash of its ordered content.
        documents: Number of documents; None if the corpus was not found.
        tokens: Number of tokens; None if the corpus was not found.
        sources: Its parts; empty if unknown.
    """

    content_hash: str
    documents: int | None
    tokens: int | None
    sources: tuple[TextSource, ...]


def corpora_of(state: StateRecord, *, store: Path) -> tuple[CorpusFacts, ...]:
    """Return facts about the corpora that a state's phases read, in order.

    Corpora outside the store are found by the recipe's paths.
    """
    hashes: dict[str, Path | None] = {}
    if "corpus_hash" in state.ground:
        hashes[str(state.ground["corpus_hash"])] = None
    for folder, content_hash in (state.ground.get("corpora") or {}).items():
        hashes.setdefault(str(content_hash), Path(folder))
    paths = (*store.glob(f"data/*/train/{_CORPUS}"), *store.glob(f"{TEXTS}/*.json"))
    known = {facts.content_hash: facts for facts in map(_read, paths) if facts}
    return tuple(
        known.get(content_hash) or _at(folder, content_hash)
        for content_hash, folder in hashes.items()
    )


def _at(folder: Path | None, content_hash: str) -> CorpusFacts:
    for path in (folder / "train" / _CORPUS, folder / _CORPUS) if folder else ():
        facts = _read(path) if path.is_file() else None
        if facts is not None and facts.content_hash == content_hash:
            return facts
    return CorpusFacts(content_hash, None, None, ())


def _read(path: Path) -> CorpusFacts | None:
    """Read a corpus's description; None if it is damaged, as the card can do without it."""
    try:
        details = read_json(path)
        return CorpusFacts(
            content_hash=details["content_hash"],
            documents=details["num_documents"],
            tokens=details["num_tokens"],
            sources=tuple(_sources(details["provenance"])),
        )
    except (DataError, KeyError, TypeError, AttributeError):
        return None


def _sources(provenance: Mapping[str, Any]) -> Iterator[TextSource]:
    for part in provenance.get("merged", ()):
        yield from _sources(part["provenance"])
    for name, counts in provenance.get("by_source", {}).items():
        # Cards are public, so local paths are omitted.
        shown = Path(name).name if Path(name).is_absolute() else name
        yield TextSource(shown, counts["documents"], counts["tokens"], counts["licenses"])
