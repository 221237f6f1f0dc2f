"""Texts of evaluation tasks, and which other texts equal them or nearly do.

Two texts are near-duplicates if at least half of the shingles of either occur in the other
(`data/text/near_duplicates.py`). Texts shorter than a shingle, or of symbols
alone, are compared whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from biphasic.data.building.selection import NO_TASKS, TaskTexts
from biphasic.data.text.near_duplicates import NEAR_DUPLICATE_SHARE, ShingleIndex, Shingler
from biphasic.files import file_sha256
from biphasic.rows import rows
from biphasic.tasks.folder import load_task
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.records import SPLITS, ExampleTask, RetrievalTask
from biphasic.tasks.rows import read_texts
from biphasic.tasks.source import prepare_task, task_key

Match = Literal["exact", "near"]


class NearTexts:
    """A collection of texts that others can be compared with."""

    def __init__(self, texts: Iterable[str], shingler: Shingler) -> None:
        shingles = [shingler.with_symbols(text) for text in texts]
        self._sizes = np.array([len(each) for each in shingles], dtype=np.int64)
        owners = np.repeat(np.arange(len(shingles)), self._sizes)
        joined = np.concatenate([np.zeros(0, np.uint64), *shingles])
        order = np.argsort(joined, kind="stable")
        self._shingles, self._owners = joined[order], owners[order]

    def match(self, shingles: NDArray[np.uint64]) -> Match | None:
        """Return how a text, by its shingles, matches one of the collection."""
        first = np.searchsorted(self._shingles, shingles)
        last = np.searchsorted(self._shingles, shingles, side="right")
        found = first < last
        bounds = zip(first[found], last[found], strict=True)
        hits = [self._owners[start:end] for start, end in bounds]
        owners, shared = np.unique(np.concatenate([np.zeros(0, int), *hits]), return_counts=True)
        if not len(owners):
            return None
        sizes = self._sizes[owners]
        if ((shared == sizes) & (shared == len(shingles))).any():
            return "exact"
        is_near = shared >= NEAR_DUPLICATE_SHARE * np.minimum(sizes, len(shingles))
        return "near" if is_near.any() else None


@dataclass(frozen=True)
class EvaluationTask:
    """The texts of a task that a model is scored on."""

    name: str  # name of the task
    content: str  # hash of its examples, and which of their fields are compared one by one
    corpus: str  # hash of the file of its documents; empty for none
    # What a model reads of the examples of validation and test splits, and the texts that templates
    # join: a short one is not found in the joined text.
    inputs: tuple[str, ...]
    documents: tuple[str, ...] = ()  # what retrieval searches; none for other kinds

    @classmethod
    def of(cls, folder: Path) -> EvaluationTask:
        """Read a task folder."""
        task = load_task(folder)
        content, corpus, documents = task.info.sha256, "", ()
        inputs = [*chain.from_iterable(_examples(folder, task, SPLITS[1:]))]
        if isinstance(task, RetrievalTask):
            path = folder / "corpus.jsonl"
            corpus = file_sha256(path)
            documents = tuple(f"{title} {text}".strip() for _, title, text in read_texts(path))
        elif task.template is not None or len(task.fields) > 1:
            content = f"{content}:{','.join(task.fields)}"
            inputs += _joined_texts(folder, task)
        different = tuple(dict.fromkeys(inputs))
        return cls(task.info.name, content, corpus, different, documents)


def _examples(
    folder: Path, task: ExampleTask | RetrievalTask, splits: Sequence[str]
) -> Iterator[tuple[str, ...]]:
    """Yield what a model reads of each example of some splits; of retrieval, the queries."""
    if isinstance(task, RetrievalTask):  # without the prompts of the kind
        judged = {query for split in splits for query in task.qrels.get(split, ())}
        texts = read_texts(folder / "queries.jsonl")
        yield from ((text,) for key, _, text in texts if key in judged)
    else:
        examples = KINDS[task.info.kind].examples
        for sample in chain.from_iterable(examples.inputs(task, split) for split in splits):
            yield (sample,) if isinstance(sample, str) else sample


def _joined_texts(folder: Path, task: ExampleTask) -> Iterator[str]:
    """Yield the texts that the template of a task joins, of validation and test splits."""
    for split in SPLITS[1:]:
        if split in task.splits:
            for row in rows(folder / f"{split}.jsonl"):
                yield from map(row.text, task.fields)


class Decontamination:
    """Finds pairs with a text that is in an evaluation task, or nearly."""

    def __init__(self, tasks: Iterable[EvaluationTask]) -> None:
        self._shingler = shingler = Shingler()
        self._collections = [
            (task, NearTexts(task.inputs, shingler), NearTexts(task.documents, shingler))
            for task in tasks
        ]

    def matches(self, texts: Iterable[str], *, own_corpus: str = "") -> Mapping[str, Match]:
        """Return the tasks that one of some texts matches, and how."""
        # `own_corpus` is the hash of documents that may occur: a training split of retrieval shares
        # them with its test split.
        shingles = [self._shingler.with_symbols(text) for text in texts]
        found: dict[str, Match] = {}
        for task, inputs, documents in self._collections:
            collections = (
                [inputs] if own_corpus and task.corpus == own_corpus else [inputs, documents]
            )
            kinds = {each.match(text) for each in collections for text in shingles}
            if kinds - {None}:
                found[task.name] = "exact" if "exact" in kinds else "near"
        return found


def count_seen(folders: Sequence[Path], documents: Iterable[str]) -> list[int]:
    """Return the number of test examples of each task that documents hold.

    They hold an example if they hold at least half of the shingles of one of its texts, wherever
    these stand.
    """
    shingler, none = Shingler(), np.zeros(0, np.uint64)
    tasks = [
        [
            [*map(shingler.with_symbols, texts)]
            for texts in _examples(folder, load_task(folder), SPLITS[2:])
        ]
        for folder in folders
    ]
    texts = chain.from_iterable(chain.from_iterable(tasks))
    known = np.unique(np.concatenate([none, *texts]))
    is_seen = np.zeros(len(known), dtype=bool)
    for document in documents:
        shingles = shingler.with_symbols(document)
        places = np.searchsorted(known, shingles)
        places[places == len(known)] = 0
        is_seen[places[known[places] == shingles]] = True
    seen = ShingleIndex([known[is_seen]])
    return [sum(any(map(seen.holds, example)) for example in examples) for examples in tasks]


def task_texts(
    sources: Sequence[str], *, store: Path, copies: Path | None, say: Callable[[str], None]
) -> TaskTexts:
    """Return the evaluation tasks of a corpus; `store` keeps them once they are loaded."""
    if not sources:
        return NO_TASKS

    def load() -> Callable[[str], bool]:
        folders = [prepare_task(each, store=store, copies=copies, say=say) for each in sources]
        tasks = Decontamination(map(EvaluationTask.of, folders))
        return lambda text: bool(tasks.matches((text,)))

    return TaskTexts(tuple(task_key(each, copies=copies) for each in sources), load)
