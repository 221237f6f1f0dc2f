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

from biphasic.analysis.records import Outcome, StudyRecords
from biphasic.records import ResultRecord

RunT = TypeVar("RunT")


@dataclass(frozen=True)
class GridScore(Generic[RunT]):
    """A run of the grid with scores.

    Attributes:
        validation: Score used for selection.
        test: Reported score.
        run: The object that the scores belong to.
    """

    rate: float
    seed: int
    validation: float
    test: float
    run: RunT


def grid_score(result: ResultRecord, run: RunT, *, metric: str) -> GridScore[RunT] | None:
    """Return the selection score and the reported score of a run; None if it has none.

    A zero-shot run is the only one of its cell, so its test score selects nothing.
    """
    if result.status != "finished":
        return None
    test = (result.test or {}).get(metric)
    validation = test if result.is_zero_shot else (result.validation or {}).get(metric)
    if test is None or validation is None:
        return None
    return GridScore(result.learning_rate, result.seed, validation, test, run)


def best_per_seed(grid: Iterable[GridScore[RunT]]) -> tuple[GridScore[RunT], ...]:
    """Return for each seed the run with the best validation score, in order of seeds.

    Ties go to the smaller rate. A seed without scores is absent.
    """
    best: dict[int, GridScore[RunT]] = {}
    # Rates are in ascending order, so only a higher score replaces an earlier rate.
    for entry in sorted(grid, key=lambda entry: entry.rate):
        if entry.seed not in best or entry.validation > best[entry.seed].validation:
            best[entry.seed] = entry
    return tuple(best[seed] for seed in sorted(best))


def best_run(grid: Iterable[GridScore[RunT]]) -> RunT | None:
    """Return the run with the best validation score; None if there is no run.

    Ties go to the smaller rate, then to the smaller seed.
    """
    best = min(grid, key=lambda entry: (-entry.validation, entry.rate, entry.seed), default=None)
    return None if best is None else best.run


def best_rate(grid: Iterable[GridScore[RunT]]) -> tuple[GridScore[RunT], ...]:
    """Return the runs of the single rate with the best mean validation score, in order of seeds.

    Only rates at which every seed has a score are considered, as means over fewer seeds are not
    comparable. Ties go to the smaller rate. Empty if there is no such rate.
    """
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


def grid(outcomes: Iterable[Outcome], *, metric: str) -> list[GridScore[Outcome]]:
    """Return the runs with scores, both for selection and for reporting."""
    return [
        score
        for outcome in outcomes
        if outcome.result is not None
        and (score := grid_score(outcome.result, outcome, metric=metric)) is not None
    ]


def select(outcomes: Iterable[Outcome], *, metric: str) -> tuple[Outcome, ...]:
    """Return the run of each seed with the best validation score, as `best_per_seed`."""
    return tuple(entry.run for entry in best_per_seed(grid(outcomes, metric=metric)))


def selected_runs(records: StudyRecords) -> Mapping[tuple[str, str], tuple[Outcome, ...]]:
    """Return the selected runs of every arm on every task, in the study's order."""

    def compute() -> dict[tuple[str, str], tuple[Outcome, ...]]:
        tasks = {task.name: task.metric for task in records.tasks}
        cells = product((arm.name for arm in records.arms), tasks)
        return {
            cell: select(records.by_cell.get(cell, ()), metric=tasks[cell[1]]) for cell in cells
        }

    return records.once("selected runs", compute)


def scores_on_test(outcomes: Iterable[Outcome], *, metric: str) -> list[float]:
    """Return the test scores of the runs that have one."""
    scores = [outcome.score("test", metric) for outcome in outcomes]
    return [score for score in scores if score is not None]
