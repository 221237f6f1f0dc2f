"""Splits taken out of the training split, and limits of splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from biphasic.errors import DataError
from biphasic.seeds import permutation, stream

if TYPE_CHECKING:
    from biphasic.tasks.custom.task_file import TaskFile

ItemT = TypeVar("ItemT")


def cut_splits(
    splits: Mapping[str, Sequence[ItemT]], file: TaskFile, *, where: str
) -> dict[str, list[ItemT]]:
    """Take splits out of the training split, then keep as many examples of each as allowed.

    Both choices are random and depend only on the seed and the number of examples. The order of
    examples does not change. Of two missing splits, `test` takes its share first.
    """
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
