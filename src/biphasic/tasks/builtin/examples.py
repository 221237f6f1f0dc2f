"""Examples of the built-in tasks, and the rule that prevents leaks between splits."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from biphasic.data.text.near_duplicates import SHINGLE_WORDS, ShingleIndex, Shingler
from biphasic.data.text.pydocs import Document, Split, body_of
from biphasic.tasks.builtin.sections import Sections, parse_sections, plain, sentences

SPLITS: tuple[Split, ...] = ("test", "validation", "train")


@dataclass(frozen=True)
class ParsedDocument:
    """A document and its parsed docstring."""

    document: Document
    sections: Sections


@dataclass(frozen=True)
class Example:
    """One candidate example of a task."""

    id: str
    split: Split
    record: Mapping[str, Any]
    """Its fields in the task's file, except the id."""
    evidence: tuple[str, ...]
    """Its source passages, in plain text; none may occur in another split's documents."""
    keys: tuple[str, ...]
    """Texts that must be unique among all examples."""
    group: str = ""
    """Examples are taken from the groups in turn."""


def parse_documents(documents: Iterable[Document]) -> list[ParsedDocument]:
    """Parse the docstring of every document."""
    return [ParsedDocument(document, parse_sections(body_of(document))) for document in documents]


def draw(text: str, count: int) -> int:
    """Choose one of `count` by the hash of a text; the choice is the same in every process."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % count


class LeakFilter:
    """Holds every split's text and selects examples that occur in no other split."""

    def __init__(self, parsed: Sequence[ParsedDocument]) -> None:
        self._shingler = Shingler()
        parts: dict[str, list[NDArray[np.uint64]]] = defaultdict(list)
        self._sentences: dict[str, set[str]] = {split: set() for split in SPLITS}
        for item in parsed:
            split = item.document.split
            parts[split].append(self._shingler(plain(body_of(item.document))))
            self._sentences[split].update(map(_normalised, _short_passages(item.sections)))
        self._elsewhere = {
            split: ShingleIndex(part for other in SPLITS if other != split for part in parts[other])
            for split in SPLITS
        }

    def select(
        self, examples: Iterable[Example], *, limits: Mapping[Split, int]
    ) -> dict[Split, list[Example]]:
        """Choose up to `limits` examples per split, by the hash of their ids."""
        # Texts are unique over all splits; of two equal ones, the held-out one is kept.
        by_split: dict[Split, list[Example]] = {split: [] for split in SPLITS}
        for example in examples:
            by_split[example.split].append(example)
        taken: set[str] = set()
        chosen: dict[Split, list[Example]] = {}
        for split in SPLITS:
            chosen[split] = kept = []
            for example in _in_turn(by_split[split]):
                if len(kept) == limits[split]:
                    break
                keys = {_normalised(key) for key in example.keys}
                if taken.isdisjoint(keys) and not self.leaks(example):
                    taken |= keys
                    kept.append(example)
        return chosen

    def leaks(self, example: Example) -> bool:
        """Return whether a passage of the example occurs in another split's documents."""
        index = self._elsewhere[example.split]
        others = [self._sentences[split] for split in SPLITS if split != example.split]
        return any(
            index.holds(self._shingler(passage))
            or any(_normalised(passage) in texts for texts in others)
            for passage in example.evidence
        )


def _short_passages(sections: Sections) -> Iterator[str]:
    """Yield sentences and descriptions of fewer words than a shingle."""
    descriptions = (parameter.description for parameter in sections.parameters)
    for text in (*sections.prose, *descriptions, sections.returns):
        for sentence in sentences(text):
            if len(sentence.split()) < SHINGLE_WORDS:
                yield sentence


def _in_turn(examples: list[Example]) -> list[Example]:
    """Order by the hash of the id, then take from the groups in turn."""
    ordered = sorted(examples, key=lambda example: hashlib.sha256(example.id.encode()).digest())
    seen: dict[str, int] = defaultdict(int)
    turns = []
    for example in ordered:
        turns.append(seen[example.group])
        seen[example.group] += 1
    return [ordered[place] for place in sorted(range(len(ordered)), key=turns.__getitem__)]


def _normalised(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))
