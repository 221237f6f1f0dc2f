"""Creates missing splits of a task from its training split, and limits splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from biphasic.errors import DataError
from biphasic.seeds import permutation, stream

ItemT = TypeVar("ItemT")


def cut_splits(
    splits: Mapping[str, Sequence[ItemT]],
    *,
    fractions: Mapping[str, float],
    limits: Mapping[str, int],
    seed: int,
    where: str,
) -> dict[str, list[ItemT]]:
    """Take splits out of the training split, then keep as many examples of each as allowed.

    Both choices are random and depend only on the seed and the number of examples. The order of
    examples does not change. `fractions` are the shares of `train` that missing splits take, `test`
    first.

    Raises:
        DataError: A split would be empty.
    """
    cut = {split: list(items) for split, items in splits.items()}
    if fractions:
        whole = cut.pop("train")
        order = permutation(stream("task-split", seed), len(whole))
        start = 0
        for split in sorted(fractions):
            end = start + round(fractions[split] * len(whole))
            cut[split] = [whole[index] for index in np.sort(order[start:end])]
            start = end
        cut["train"] = [whole[index] for index in np.sort(order[start:])]
    for split, items in cut.items():
        if not items:
            raise DataError(f"{where}: the fractions leave no example for {split}")
    return {split: _limited(split, items, limits, seed) for split, items in cut.items()}


def _limited(split: str, items: list[ItemT], limits: Mapping[str, int], seed: int) -> list[ItemT]:
    if len(items) <= limits.get(split, len(items)):
        return items
    order = permutation(stream(f"task-limit-{split}", seed), len(items))
    return [items[index] for index in np.sort(order[: limits[split]])]
