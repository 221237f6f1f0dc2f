"""Writes the four built-in tasks from the documentation, without leaks between splits."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from biphasic.data.text.near_duplicates import (
    SHINGLE_WORDS,
    ShingleIndex,
    Shingler,
    comparable_words,
)
from biphasic.errors import DataError
from biphasic.pydocs.documents import Document, Split, body_of
from biphasic.pydocs.examples import (
    TAGS,
    Example,
    ParsedDocument,
    library_examples,
    library_labels,
    parameter_examples,
    parameter_questions,
    parse_documents,
    summary_examples,
)
from biphasic.pydocs.sections import Sections, plain, sentences
from biphasic.tasks.folder import TaskDescription, write_task_folder
from biphasic.tasks.records import TaskContent

SPLITS: tuple[Split, ...] = ("test", "validation", "train")
TASKS_VERSION = 2  # increase by hand whenever the same documents would give different tasks
BUILTIN_TASKS = {f"pydocs-{kind}": kind for kind in ("sc", "tc", "qa", "ir")}
"""The kind of each built-in task."""
LIMITS: Mapping[Split, int] = {"train": 4_000, "validation": 400, "test": 600}
RETRIEVAL_LIMITS: Mapping[Split, int] = {"train": 3_000, "validation": 300, "test": 600}

Selected = Mapping[Split, Sequence[Example]]


def build_tasks(documents: Sequence[Document], out: Path) -> None:
    """Write `pydocs-sc`, `pydocs-tc`, `pydocs-qa` and `pydocs-ir`; only documents matter."""
    parsed = parse_documents(documents)
    leak_filter = LeakFilter(parsed)
    labels = library_labels(parsed)

    chosen = leak_filter.select(library_examples(parsed, labels), limits=LIMITS)
    _write(out, "sc", chosen, partial(_examples, labels), title="Which library?")

    chosen = leak_filter.select(parameter_examples(parsed), limits=LIMITS)
    _write(out, "tc", chosen, partial(_examples, TAGS), title="Parameter spans")

    chosen = leak_filter.select(parameter_questions(parsed), limits=LIMITS)
    _write(out, "qa", chosen, partial(_examples, ()), title="Parameter questions")

    chosen = leak_filter.select(summary_examples(parsed), limits=RETRIEVAL_LIMITS)
    _write(out, "ir", chosen, _texts, title="Find the page")


def _write(
    out: Path,
    kind: str,
    chosen: Selected,
    content_of: Callable[[Selected], TaskContent],
    *,
    title: str,
) -> None:
    name = f"pydocs-{kind}"
    for split in SPLITS:
        if not chosen[split]:
            raise DataError(f"{name}: the documentation yields no {split} example")
    description = TaskDescription(name=name, kind=kind, title=title)
    write_task_folder(out / name, description, content_of(chosen))


def _examples(labels: Sequence[str], chosen: Selected) -> TaskContent:
    rows = {
        split: [{"id": example.id, **example.record} for example in examples]
        for split, examples in chosen.items()
    }
    return TaskContent(splits=rows, labels=labels)


def _texts(chosen: Selected) -> TaskContent:
    """Return corpus, queries and judgements; all splits share one corpus."""
    every = sorted((e for part in chosen.values() for e in part), key=lambda e: e.id)
    return TaskContent(
        corpus=[{"_id": e.id, "title": "", "text": e.record["text"]} for e in every],
        queries=[{"_id": f"q:{e.id}", "text": e.record["query"]} for e in every],
        qrels={
            split: [(f"q:{example.id}", example.id, 1) for example in examples]
            for split, examples in chosen.items()
        },
    )


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
    return " ".join(comparable_words(text))
