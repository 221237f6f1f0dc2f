"""Which runs of a grid of learning rates and seeds speak for a model.

Both ways look at validation scores alone. The first is the study's: each seed takes its own best
rate. The second takes one rate for all seeds, as somebody who trains once would; what the first
scores above it is what choosing per seed adds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from biphasic.records import ZERO_SHOT, ResultRecord

RunT = TypeVar("RunT")


@dataclass(frozen=True)
class GridScore(Generic[RunT]):
    """A run of the grid that has scores.

    Attributes:
        rate: Learning rate.
        seed: Fine-tuning seed.
        validation: Score that decides.
        test: Score that is reported.
        run: Whatever the scores belong to.
    """

    rate: float
    seed: int
    validation: float
    test: float
    run: RunT


def grid_score(result: ResultRecord, run: RunT, *, metric: str) -> GridScore[RunT] | None:
    """Return the scores of a run that decide and that are reported; None where it has none.

    A zero-shot run is the only one of its cell, so nothing is chosen by its test score.
    """
    if result.status != "finished":
        return None
    test = (result.test or {}).get(metric)
    validation = test if result.kind == ZERO_SHOT else (result.validation or {}).get(metric)
    if test is None or validation is None:
        return None
    return GridScore(result.learning_rate, result.seed, validation, test, run)


def best_per_seed(grid: Iterable[GridScore[RunT]]) -> tuple[GridScore[RunT], ...]:
    """Pick for each seed the run with the best validation score, in order of seeds.

    Ties go to the smaller rate. A seed without scores is absent.
    """
    best: dict[int, GridScore[RunT]] = {}
    # Rates come in ascending order, so that only a greater score replaces an earlier rate.
    for entry in sorted(grid, key=lambda entry: entry.rate):
        if entry.seed not in best or entry.validation > best[entry.seed].validation:
            best[entry.seed] = entry
    return tuple(best[seed] for seed in sorted(best))


def best_run(grid: Iterable[GridScore[RunT]]) -> RunT | None:
    """Pick the run with the best validation score; None where there is no run.

    Ties go to the smaller rate, then to the smaller seed.
    """
    best = min(grid, key=lambda entry: (-entry.validation, entry.rate, entry.seed), default=None)
    return None if best is None else best.run


def best_rate(grid: Iterable[GridScore[RunT]]) -> tuple[GridScore[RunT], ...]:
    """Pick the runs of the one rate whose mean validation score is best, in order of seeds.

    Only rates at which every seed has a score can be chosen: a mean over fewer seeds is of
    something else. Ties go to the smaller rate. Empty where there is no such rate.
    """
    by_rate: dict[float, list[GridScore[RunT]]] = defaultdict(list)
    for entry in grid:
        by_rate[entry.rate].append(entry)
    seeds = {entry.seed for entries in by_rate.values() for entry in entries}
    whole = {rate: found for rate, found in by_rate.items() if len(found) == len(seeds)}
    if not whole:
        return ()
    best = min(whole, key=lambda rate: (-_mean_validation(whole[rate]), rate))
    return tuple(sorted(whole[best], key=lambda entry: entry.seed))


def _mean_validation(entries: list[GridScore[RunT]]) -> float:
    return math.fsum(entry.validation for entry in entries) / len(entries)
