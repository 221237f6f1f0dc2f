"""The primary outcome of again.yaml: one contrast of two arms' means of standardised scores.

Usage: .venv/bin/python evidence/again/primary.py runs/again runs/again-pilot
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection
from pathlib import Path

from biphasic.analysis.estimate import LEVEL
from biphasic.analysis.records import load_records
from biphasic.analysis.scores.source import study_scores
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.statistics.contrast import Contrast, contrast
from biphasic.analysis.statistics.doubts import floor_tests
from biphasic.analysis.statistics.replicates import by_recipe

# The outcome is the first minus the second. A recipe has the name of its first pretraining run.
ARMS = ("nano-clm-1200-mlm40-2400", "nano-mlm40-2400")
FIRST_RUN, FIRST_PILOT_RUN = 201, 101
MARGIN = 2.0
# Standard errors by which an arm of the pilot must be above every floor for a task to count.
ABOVE = 2.0
# Tasks, with the score that a standardised score of 0 stands for: the most frequent label, or the
# most frequent tag of each word. 100 stays 100.
ZEROS = {
    "trec-probe": 18.8,
    "sst2-probe": 49.9,
    "uner_en-probe": 44.9,
    "wnut17-probe": 6.0,
    "uner_en": 44.9,
    "wnut17": 6.0,
}


def task_weights(tasks: Collection[str]) -> dict[str, float]:
    """Return the change of the outcome by one point of score on each task."""
    return {task: 100 / (100 - ZEROS[task]) / len(tasks) for task in tasks}


def counted_tasks(pilot: Scores) -> list[str]:
    """Return the tasks on which an arm of the outcome is above every floor in the pilot."""

    def is_above(arm: str, floor: str, task: str) -> bool:
        lead = contrast(pilot, {(arm, task): 1.0, (floor, task): -1.0}, blocks=())
        return lead is not None and lead.mean > ABOVE * lead.deciding.error

    arms = [f"{arm}-seed{FIRST_PILOT_RUN}" for arm in ARMS]
    floors = {task: floor_tests(pilot, task).floors for task in ZEROS}
    return [
        task
        for task in ZEROS
        if any(all(is_above(arm, floor, task) for floor in floors[task]) for arm in arms)
    ]


def outcome(scores: Scores, tasks: Collection[str], first_run: int) -> Contrast | None:
    """Compare the arms over pretraining runs and test examples; None without a common run."""
    terms = {
        (f"{arm}-seed{first_run}", task): sign * weight
        for arm, sign in zip(ARMS, (1, -1), strict=True)
        for task, weight in task_weights(tasks).items()
    }
    return contrast(scores, terms, blocks=())


def verdict(found: Contrast) -> str:
    """Say what the registered rule says."""
    words = []
    if found.p_value is not None and found.p_value <= LEVEL:
        words.append("clearly above zero" if found.mean > 0 else "clearly below zero")
    p_level = found.within(MARGIN).p_value
    if p_level is not None and p_level <= LEVEL:
        words.append(f"level within {MARGIN:g} points")
    return " and ".join(words) or "undecided"


def main(study: Path, pilot: Path) -> None:
    """Print the outcome, and the tasks on which neither arm is clearly above all floors."""
    scores, of_pilot = (by_recipe(study_scores(load_records(each))) for each in (study, pilot))
    tasks = counted_tasks(of_pilot)
    print(f"tasks by the pilot: {', '.join(tasks) or 'none'}")
    found = outcome(scores, tasks, FIRST_RUN) if tasks else None
    if found is None or found.p_value is None:
        print("there are not two pretraining runs with all scores of both arms")
        return
    low, high = found.interval or (math.nan, math.nan)
    level = found.within(MARGIN)
    print(f"{ARMS[0]} - {ARMS[1]}: {found.mean:+.2f} points ({low:+.2f} to {high:+.2f})")
    print("by run:", ", ".join(f"{value:+.2f}" for value in found.by_seed.values()))
    print(f"standard error over test examples: {found.example_error:.2f} {found.missing}")
    print(f"p {found.p_value:.4g}; over runs alone {found.p_over_seeds:.4g}")
    print(f"p of level {level.p_value:.4g}; over runs alone {level.p_over_seeds:.4g}")
    print(f"verdict, once all registered runs are there: {verdict(found)}")
    arms = [f"{arm}-seed{FIRST_RUN}" for arm in ARMS]
    for task in tasks:
        if note := floor_tests(scores, task).note(*arms):
            print(f"  {task}: {note}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
