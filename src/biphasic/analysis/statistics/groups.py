"""Ranks that cannot be told apart: stretches of a ranking without a clear difference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from biphasic.analysis.estimate import LEVEL
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.statistics.compare import Family


@dataclass(frozen=True)
class Groups:
    """Groups of a ranking, best first; a model can be in several."""

    order: tuple[str, ...]
    # First and last place of each group, from 0. No two of its models differ clearly, and no group
    # is part of another.
    ranks: tuple[tuple[int, int], ...]
    num_alike: int  # neighbours in the ranking that do not differ clearly


def groups_of(scores: Scores, family: Family) -> Groups:
    """Group the models of a dataset."""
    num = len(family.order)
    firsts, seconds = np.triu_indices(num, k=1)
    means = scores.means(family.dataset.name)
    values = np.array([means[name] for name in family.order])
    # NaN, without a test, is not clear.
    is_clear = (family.p_adjusted <= LEVEL) & (values[firsts] != values[seconds])
    table = np.zeros((num, num), dtype=np.bool_)
    table[firsts, seconds] = is_clear
    places = {name: place for place, name in enumerate(family.order)}
    for (first, second), plan in family.planned.items():
        if first in places and second in places:
            low, high = sorted((places[first], places[second]))
            table[low, high] = plan.p_adjusted <= LEVEL and values[low] != values[high]
    ranks: list[tuple[int, int]] = []
    end = 0
    for start in range(num):
        end = max(end, start)
        while end + 1 < num and not table[start : end + 1, end + 1].any():
            end += 1
        if not ranks or end > ranks[-1][1]:
            ranks.append((start, end))
    return Groups(family.order, tuple(ranks), int((~np.diagonal(table, 1)).sum()))
