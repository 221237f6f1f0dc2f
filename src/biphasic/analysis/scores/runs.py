"""Computes means with intervals from scores of single runs, by a named convention.

Both conventions select the same runs: for each seed, the learning rate with the best validation
score, or the smaller rate on a tie. The mean is over the selected runs' test scores. The
conventions differ in the half-width of the 95 % interval (`estimate.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from biphasic.analysis.estimate import Estimate, estimate
from biphasic.analysis.records import Outcome, StudyRecords
from biphasic.analysis.scores.selection import GridScore, best_per_seed, grid_score
from biphasic.records import ZERO_SHOT_SEED, Convention


@dataclass(frozen=True)
class Cell:
    """One arm on one task."""

    arm: str
    task: str
    metric: str
    estimate: Estimate | None
    """None if no run finished."""
    selected: tuple[Outcome, ...]
    """The selected run of each seed, in order of seeds."""
    is_complete: bool
    """Whether every expected run has finished or diverged, and every seed has a score."""
    num_expected: int
    """Seeds that the study expects here."""


def select(outcomes: Iterable[Outcome], *, metric: str) -> tuple[Outcome, ...]:
    """Return for each seed the run with the best validation score; ties go to the smaller rate.

    Runs without a score are ignored, and seeds without any are absent. A zero-shot run is the only
    one of its cell, so its test score selects nothing.
    """
    return tuple(entry.run for entry in best_per_seed(grid(outcomes, metric=metric)))


def grid(outcomes: Iterable[Outcome], *, metric: str) -> list[GridScore[Outcome]]:
    """Return the runs with scores, both for selection and for reporting."""
    scores = (
        grid_score(outcome.result, outcome, metric=metric)
        for outcome in outcomes
        if outcome.result is not None and outcome.status == "finished"
    )
    return [score for score in scores if score is not None]


def scores_on_test(outcomes: Iterable[Outcome], *, metric: str) -> list[float]:
    """Return the test scores of the runs that have one."""
    scores = [outcome.score("test", metric) for outcome in outcomes]
    return [score for score in scores if score is not None]


def cells(
    records: StudyRecords, *, convention: Convention | None = None
) -> dict[tuple[str, str], Cell]:
    """Summarize every arm on every task, in the study's order; `convention` overrides its own."""
    by = convention or records.study.convention
    return records.once("cells", by, lambda: _cells(records, by))


def _cells(records: StudyRecords, convention: Convention) -> dict[tuple[str, str], Cell]:
    table = {}
    for arm in records.arms:
        for task in records.tasks:
            outcomes = records.by_cell.get((arm.name, task.name), ())
            selected = select(outcomes, metric=task.metric)
            tests = scores_on_test(selected, metric=task.metric)
            seeds = (ZERO_SHOT_SEED,) if task.is_zero_shot else records.study.seeds
            # A diverged rate was tried and lost; a missing one might have been the best.
            is_tried = all(outcome.status in {"finished", "diverged"} for outcome in outcomes)
            table[arm.name, task.name] = Cell(
                arm=arm.name,
                task=task.name,
                metric=task.metric,
                estimate=estimate(tests, convention=convention),
                selected=selected,
                is_complete=is_tried and {outcome.run.seed for outcome in selected} == set(seeds),
                num_expected=len(seeds),
            )
    return table
