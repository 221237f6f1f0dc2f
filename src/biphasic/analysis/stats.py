"""From scores of single runs to a mean with an interval, by a named convention.

Both conventions select alike: for each seed, the learning rate with the best validation score,
the smaller rate where two tie. The mean is that of the selected runs' test scores. They differ
in the half-width of the 95 % interval:

- `paper` (arXiv:2507.00994): 1.96 * s / sqrt(n), with s over n - 1. With five seeds it covers
  the truth about 88 times in 100.
- `standard`: Student's t with n - 1 degrees of freedom in place of 1.96.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

from biphasic.analysis.load import Outcome, StudyRecords
from biphasic.records import ZERO_SHOT, ZERO_SHOT_SEED, Convention

NORMAL_QUANTILE = 1.96


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95 % interval."""

    mean: float
    half_width: float | None
    """None with fewer than two seeds: the data say nothing about the spread."""
    num_seeds: int

    @property
    def low(self) -> float:
        """The interval's lower end, or the mean where there is no interval."""
        return self.mean - (self.half_width or 0.0)

    @property
    def high(self) -> float:
        """The interval's upper end, or the mean where there is no interval."""
        return self.mean + (self.half_width or 0.0)


@dataclass(frozen=True)
class Cell:
    """One arm on one task."""

    arm: str
    task: str
    metric: str
    estimate: Estimate | None
    """None where no run finished."""
    selected: tuple[Outcome, ...]
    """The run that stands for each seed, in order of seeds."""
    is_complete: bool
    """Every expected run has finished or diverged, and every seed has a score."""
    num_expected: int
    """Seeds that the study expects here."""


def estimate(scores: Sequence[float], *, convention: Convention) -> Estimate | None:
    """Average scores of independent seeds; None without any.

    The half-width is None with fewer than two scores, never zero.
    """
    num = len(scores)
    if num == 0:
        return None
    mean = math.fsum(scores) / num
    if num == 1:
        return Estimate(mean, None, 1)
    variance = math.fsum((score - mean) ** 2 for score in scores) / (num - 1)
    quantile = NORMAL_QUANTILE if convention == "paper" else float(stdtrit(num - 1, 0.975))
    return Estimate(mean, quantile * math.sqrt(variance / num), num)


def select(outcomes: Iterable[Outcome], *, metric: str) -> tuple[Outcome, ...]:
    """Pick for each seed the run with the best validation score; ties go to the smaller rate.

    Runs without a score take no part; a seed without any is absent from the answer. A zero-shot
    run is the only one of its cell, so nothing is chosen by its test score.
    """
    best: dict[int, tuple[float, Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.run.learning_rate):
        score = outcome.score("test" if _is_zero_shot(outcome) else "validation", metric)
        if score is None:
            continue
        # Rates come in ascending order, so that only a greater score replaces an earlier rate.
        if outcome.run.seed not in best or score > best[outcome.run.seed][0]:
            best[outcome.run.seed] = (score, outcome)
    return tuple(outcome for _, (_, outcome) in sorted(best.items(), key=lambda item: item[0]))


def _is_zero_shot(outcome: Outcome) -> bool:
    return outcome.result is not None and outcome.result.kind == ZERO_SHOT


def scores_on_test(outcomes: Iterable[Outcome], *, metric: str) -> list[float]:
    """Return the test scores of the runs that have one."""
    scores = [outcome.score("test", metric) for outcome in outcomes]
    return [score for score in scores if score is not None]


def cells(
    records: StudyRecords, *, convention: Convention | None = None
) -> dict[tuple[str, str], Cell]:
    """Summarise every arm on every task, in the study's order; `convention` replaces its own."""
    convention = convention or records.study.convention
    groups = records.by_cell()
    table = {}
    for arm in records.arms:
        for task in records.tasks:
            outcomes = groups.get((arm.name, task.name), ())
            seeds = (ZERO_SHOT_SEED,) if task.is_zero_shot else records.study.seeds
            table[arm.name, task.name] = _cell(
                (arm.name, task.name, task.metric), outcomes, seeds, convention
            )
    return table


def _cell(
    key: tuple[str, str, str],
    outcomes: Sequence[Outcome],
    seeds: Sequence[int],
    convention: Convention,
) -> Cell:
    arm, task, metric = key
    selected = select(outcomes, metric=metric)
    # A diverged rate was tried and lost; a missing one might have won.
    is_tried = all(outcome.status in {"finished", "diverged"} for outcome in outcomes)
    return Cell(
        arm=arm,
        task=task,
        metric=metric,
        estimate=estimate(scores_on_test(selected, metric=metric), convention=convention),
        selected=selected,
        is_complete=is_tried and {outcome.run.seed for outcome in selected} == set(seeds),
        num_expected=len(seeds),
    )


def ranking(table: Mapping[tuple[str, str], Cell], task: str) -> list[tuple[str, Estimate]]:
    """Order the arms that have a score on one task, best first; equals keep the study's order."""
    scored = [
        (cell.arm, cell.estimate)
        for cell in table.values()
        if cell.task == task and cell.estimate is not None
    ]
    return sorted(scored, key=lambda entry: -entry[1].mean)


def overlap(first: Estimate, second: Estimate) -> bool | None:
    """Tell whether two intervals overlap; None where one of them has no interval."""
    if first.half_width is None or second.half_width is None:
        return None
    return first.low <= second.high and second.low <= first.high
