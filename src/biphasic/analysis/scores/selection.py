"""Selects the runs of a grid of learning rates and seeds that represent a model.

Both ways use validation scores only. The first is the study's: each seed takes its own best rate.
The second takes one rate for all seeds. The difference between the two is the gain of choosing per
seed. A model's score is the mean of the selected runs' test scores (`estimate.py`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Generic, TypeVar

from biphasic.analysis.records import StudyRecords
from biphasic.records import ResultRecord

RunT = TypeVar("RunT")


@dataclass(frozen=True)
class GridScore(Generic[RunT]):
    """A run of the grid, with the scores for selection and for reporting, and what made them."""

    rate: float
    seed: int
    validation: float
    test: float
    run: RunT


def grid(results: Iterable[ResultRecord], *, metric: str) -> list[GridScore[ResultRecord]]:
    """Return the runs that have a selection score and a reported score."""
    # A zero-shot run is the only one of its cell, so its test score selects nothing.
    entries = []
    for result in results:
        test = (result.test or {}).get(metric)
        validation = test if result.is_zero_shot else (result.validation or {}).get(metric)
        if result.status == "finished" and test is not None and validation is not None:
            rate, seed = result.learning_rate, result.seed
            entries.append(GridScore(rate, seed, validation, test, result))
    return entries


def best_per_seed(grid: Iterable[GridScore[RunT]]) -> tuple[GridScore[RunT], ...]:
    """Return for each seed the run with the best validation score, in order of seeds."""
    # Ties go to the smaller rate. A seed without scores is absent.
    best: dict[int, GridScore[RunT]] = {}
    # Rates are in ascending order, so only a higher score replaces an earlier rate.
    for entry in sorted(grid, key=lambda entry: entry.rate):
        if entry.seed not in best or entry.validation > best[entry.seed].validation:
            best[entry.seed] = entry
    return tuple(best[seed] for seed in sorted(best))


def best_rate(grid: Iterable[GridScore[RunT]]) -> tuple[GridScore[RunT], ...]:
    """Return the runs of the single rate with the best mean validation score, in order of seeds."""
    # Only rates at which every seed has a score are considered, as means over fewer seeds are not
    # comparable. Ties go to the smaller rate. Empty if there is no such rate.
    by_rate: dict[float, list[GridScore[RunT]]] = defaultdict(list)
    for entry in grid:
        by_rate[entry.rate].append(entry)
    seeds = {entry.seed for entries in by_rate.values() for entry in entries}
    whole = {rate: entries for rate, entries in by_rate.items() if len(entries) == len(seeds)}
    if not whole:
        return ()
    totals = {rate: math.fsum(e.validation for e in entries) for rate, entries in whole.items()}
    best = min(whole, key=lambda rate: (-totals[rate] / len(seeds), rate))
    return tuple(sorted(whole[best], key=lambda entry: entry.seed))


def results_of(records: StudyRecords, arm: str, task: str) -> list[ResultRecord]:
    """Return the results of an arm on a task that exist."""
    outcomes = records.by_cell.get((arm, task), ())
    return [outcome.result for outcome in outcomes if outcome.result is not None]


def selected_runs(records: StudyRecords) -> Mapping[tuple[str, str], tuple[ResultRecord, ...]]:
    """Return the selected runs of every arm on every task, in the study's order."""

    def compute() -> dict[tuple[str, str], tuple[ResultRecord, ...]]:
        return {
            (arm.name, task.name): tuple(
                entry.run
                for entry in best_per_seed(
                    grid(results_of(records, arm.name, task.name), metric=task.metric)
                )
            )
            for arm, task in product(records.arms, records.tasks)
        }

    return records.once("selected runs", compute)
