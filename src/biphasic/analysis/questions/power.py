"""Detectable differences of a study's questions, before it runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Set
from pathlib import Path

from biphasic.analysis.records import load_study
from biphasic.analysis.scores.source import replicate_of, study_scores
from biphasic.analysis.statistics.power import Design, residual_spread, smallest_detectable
from biphasic.analysis.statistics.replicates import by_recipe
from biphasic.records import AskedRecord, DetectableRecord, StudyRecord


def detectable_differences(
    study: StudyRecord, spread_on: Callable[[str], float]
) -> Iterator[DetectableRecord]:
    """Yield the smallest detectable difference of each comparison that has a test over runs."""
    # `spread_on` returns the standard deviation of an arm's score over runs on a task.
    for question in study.questions:
        number = sum(len(one.tasks) for one in question.comparisons)
        for place, one in enumerate(question.comparisons):
            for task in one.tasks:
                design = _design(study, one, task, number, spread := spread_on(task))
                if (points := smallest_detectable(design)) is not None:
                    where = {"question": question.name, "comparison": place, "task": task}
                    yield DetectableRecord(**where, points=points, spread=spread)


def pilot_spreads(folder: Path) -> Callable[[str], float]:
    """Return the spreads over runs that a finished study measured."""
    scores = by_recipe(study_scores(load_study(folder, folder.parent / "store")))
    return lambda task: residual_spread(scores, task)


def _design(
    study: StudyRecord, asked: AskedRecord, task: str, number: int, spread: float
) -> Design:
    sides = (asked.first, asked.second, *(asked.minus or ()))
    weights: Counter[str] = Counter()
    for side, weight in zip(sides, (1, -1, -1, 1), strict=False):
        weights[side[0]] += weight  # an arm may occur twice
    num_runs = min(map(len, sides))
    seeds = {run.seed for run in study.runs if (run.arm, run.task) == (asked.first[0], task)}
    return Design(
        weights=tuple(float(weight) for weight in weights.values() if weight),
        num_arms=_num_pooled(study, {name for side in sides for name in side}),
        num_runs=num_runs if num_runs > 1 else len(seeds),
        num_comparisons=number,
        are_blocks=num_runs > 1,
        spread=spread,
    )


def _num_pooled(study: StudyRecord, asked: Set[str]) -> int:
    """Count the finished or asked recipes with several runs, whose variance is pooled."""
    runs: defaultdict[str, set[str]] = defaultdict(set)
    for arm in study.arms:
        if arm.is_final or arm.name in asked:
            runs[replicate_of(arm)].add(arm.state)
    return sum(len(states) > 1 for recipe, states in runs.items() if recipe)
