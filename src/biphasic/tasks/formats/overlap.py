"""Examples that occur in two splits of a task."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import combinations

from biphasic.tasks.records import SPLITS, Question, RetrievalTask, TaggedSentence, Task


def count_overlaps(task: Task, trainer: Task | None = None) -> dict[str, int]:
    """Count the examples of each later split that also occur in an earlier one.

    Two examples are the same if their texts match, in lower case and with white space collapsed:
    both texts of a pair, question and context, the words of a sentence, or the query. Queries
    include the prompts of their task, so tasks with different prompts share none. A trainer's
    training split replaces the task's own.

    Returns:
        Counts by `"train/test"` and the like, without zeros.
    """
    keys = {split: list(_keys(task, split)) for split in SPLITS}
    if trainer is not None:
        keys["train"] = list(_keys(trainer, "train"))
    counts = {}
    for earlier, later in combinations(SPLITS, 2):
        known = set(keys[earlier])
        if count := sum(key in known for key in keys[later]):
            counts[f"{earlier}/{later}"] = count
    return counts


def _keys(task: Task, split: str) -> Iterator[bytes]:
    for text in _texts(task, split):
        normal = " ".join(text.lower().split())
        yield hashlib.blake2b(normal.encode("utf-8"), digest_size=16).digest()


def _texts(task: Task, split: str) -> Iterator[str]:
    if isinstance(task, RetrievalTask):
        for query in task.qrels.get(split, ()):
            yield task.queries[query]
        return
    for record in task.splits[split]:
        if isinstance(record, TaggedSentence):
            yield " ".join(record.words)
        elif isinstance(record, Question):
            yield f"{record.question}\n{record.context}"
        else:
            yield record.text
