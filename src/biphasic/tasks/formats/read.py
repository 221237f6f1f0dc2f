"""Reads task folders; errors name file and line.

`docs/formats.md` describes the layout of each kind. Nothing is skipped or repaired: an unusable
record is an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from biphasic.errors import DataError, reading
from biphasic.files import digest, file_sha256
from biphasic.tasks.formats.folder import TaskDescription, read_description, task_files
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.records import SPLITS, Task, TaskInfo
from biphasic.tasks.rows.templates import PAIR_TEMPLATE


def load_task(folder: Path) -> Task:
    """Read a task folder."""
    description = read_description(folder)
    files = task_files(folder, description)
    info = TaskInfo(
        name=description.name,
        kind=description.kind,
        title=description.title,
        metric=description.metric,
        sha256=digest(_determinants(folder, description, files)),
        trained_on=description.trained_on,
    )
    with reading(folder, DataError):
        task = KINDS[description.kind].read(folder, description, info, files)
    return replace(task, info=replace(info, overlaps=count_overlaps(task)))


def _determinants(folder: Path, description: TaskDescription, files: list[str]) -> dict[str, Any]:
    """Return everything that determines the examples."""
    return {
        "kind": description.kind,
        "files": {name: file_sha256(folder / name) for name in files},
        "template": PAIR_TEMPLATE if description.template is None else description.template,
        **KINDS[description.kind].templates(description),
    }


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
    for given in KINDS[task.info.kind].inputs(task, split):
        text = given if isinstance(given, str) else "\n".join(given)
        normal = " ".join(text.lower().split())
        yield hashlib.blake2b(normal.encode("utf-8"), digest_size=16).digest()
