"""Splits: the usual names of their files, and those taken out of the training split."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from biphasic.errors import DataError
from biphasic.seeds import permutation, stream

if TYPE_CHECKING:
    from biphasic.tasks.task_file import TaskFile

ItemT = TypeVar("ItemT")
# Usual names of splits.
SPLIT_NAMES = {"train": "train", "validation": "validation|valid|val|dev", "test": "test"}
USUAL_TEXTS = (
    ("text",),
    ("sentence",),
    ("text_a", "text_b"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
)  # usual column names of single texts and of pairs


def find_splits(folder: Path, suffixes: Sequence[str]) -> dict[str, Path]:
    """Return the files of splits in a folder."""
    files, ends = {}, "|".join(map(re.escape, suffixes))
    for split, names in SPLIT_NAMES.items():
        # SQuAD's file names include the version, those of Universal Dependencies the treebank.
        pattern = rf"(.+-ud-)?({names})(-v\d+\.\d+)?({ends})(\.gz|\.zst)?"
        paths = [path for path in sorted(folder.iterdir()) if re.fullmatch(pattern, path.name)]
        if path := only_path(paths):
            files[split] = path
    return files


def only_path(paths: list[Path]) -> Path | None:
    """Return the only path, or None if there is none."""
    if len(paths) > 1:
        names = " or ".join(path.name for path in paths)
        raise DataError(f"{paths[0].parent}: several files match ({names}); set one in a task file")
    return paths[0] if paths else None


def cut_splits(
    splits: Mapping[str, Sequence[ItemT]], file: TaskFile, *, where: str
) -> dict[str, list[ItemT]]:
    """Take splits out of the training split, then keep as many examples of each as allowed."""
    # Both choices depend only on the seed and the number of examples, whose order does not change.
    cut = {split: list(items) for split, items in splits.items()}
    shares = {"test": file.test_fraction, "validation": file.validation_fraction}
    fractions = {split: share for split, share in shares.items() if share}
    if fractions:
        whole = cut.pop("train")
        order = permutation(stream("task-split", file.seed), len(whole))
        start = 0
        for split, fraction in fractions.items():
            end = start + round(fraction * len(whole))
            cut[split] = [whole[index] for index in np.sort(order[start:end])]
            start = end
        cut["train"] = [whole[index] for index in np.sort(order[start:])]
    for split, items in cut.items():
        if not items:
            raise DataError(f"{where}: the fractions leave no example for {split}")
    for split, limit in file.limits.items():
        items = cut.get(split, [])
        if len(items) > limit:
            order = permutation(stream(f"task-limit-{split}", file.seed), len(items))
            cut[split] = [items[index] for index in np.sort(order[:limit])]
    return cut
