"""The smallest difference that a study's questions can find, by simulation of the deciding test."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from biphasic.analysis.estimate import LEVEL
from biphasic.analysis.records import load_records
from biphasic.analysis.scores.source import replicate_of, study_scores
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.statistics.contrast import (
    FEWEST,
    Blocks,
    contrast_of,
    pooled,
    residual_variance,
)
from biphasic.analysis.statistics.crossed import NO_EXAMPLES
from biphasic.analysis.statistics.paired import NO_SPREAD, POWER
from biphasic.analysis.statistics.replicates import by_recipe
from biphasic.errors import DataError
from biphasic.facts import is_baseline
from biphasic.records import AskedRecord, DetectableRecord, StudyRecord
from biphasic.seeds import stream


def detectable_differences(
    study: StudyRecord, spread_on: Callable[[str], float]
) -> Iterator[DetectableRecord]:
    """Yield the smallest detectable difference of each comparison that has a test over runs."""
    # `spread_on` returns the standard deviation of an arm's score over runs on a task.
    for question in study.questions:
        number = sum(len(one.tasks) for one in question.comparisons)
        for place, one in enumerate(question.comparisons):
            for task in one.tasks:
                own = {
                    side[0]
                    for other in question.comparisons
                    if task in other.tasks
                    for side in (other.first, other.second, *(other.minus or ()))
                    if not is_baseline(side[0])
                }
                design = replace(_design(study, one, task, number), num_own=len(own))
                spread = spread_on(task) if design.num_runs > 1 else 0.0
                design = replace(design, spread=spread)
                if (points := smallest_detectable(design)) is not None:
                    yield DetectableRecord(
                        question=question.name,
                        comparison=place,
                        task=task,
                        points=points,
                        spread=spread,
                        **({} if question.margin is None else powers(design, one, question.margin)),
                    )


def pilot_spreads(folder: Path) -> Callable[[str], float]:
    """Return the spreads over runs that a finished study measured."""
    scores = by_recipe(study_scores(load_records(folder)))
    return lambda task: residual_spread(scores, task)


def _design(study: StudyRecord, asked: AskedRecord, task: str, number: int) -> Design:
    sides, weights = [], Counter[str]()
    every = (asked.first, asked.second, *(asked.minus or ()))
    for side, weight in zip(every, (1, -1, -1, 1), strict=False):
        if not is_baseline(side[0]):  # these have no spread over runs
            sides.append(side)
            weights[side[0]] += weight  # an arm may occur twice
    # Finished or asked recipes with several runs, whose variance is pooled.
    asked_arms = {name for side in sides for name in side}
    runs: defaultdict[str, set[str]] = defaultdict(set)
    for arm in study.arms:
        if arm.is_final or arm.name in asked_arms:
            runs[replicate_of(arm)].add(arm.state)
    num_runs = min(map(len, sides))
    seeds = {run.seed for run in study.runs if (run.arm, run.task) == (sides[0][0], task)}
    return Design(
        weights=tuple(float(weight) for weight in weights.values() if weight),
        num_arms=sum(len(states) > 1 for recipe, states in runs.items() if recipe),
        num_runs=num_runs if num_runs > 1 else len(seeds),
        num_comparisons=number,
        are_blocks=num_runs > 1 and not sum(weights.values()),  # as `blocks_for`
    )


_DRAWS = 1_000
# Differences tried, each twice the one before until one is enough, then halving the interval.
_STEPS = 14


@dataclass(frozen=True)
class Design:
    """A comparison that is still to be computed."""

    weights: tuple[float, ...]  # of the arms in the comparison
    num_arms: int  # arms whose variance is pooled
    num_runs: int  # runs of each arm: pretraining runs (`are_blocks`), or fine-tuning seeds
    num_comparisons: int  # comparisons of its question, which are corrected together
    are_blocks: bool
    # Standard deviation of an arm's score over runs, in percentage points, beside what all arms
    # share.
    spread: float = 1.0
    num_own: int = 0  # arms of the question, whose variance is pooled by itself as well


def smallest_detectable(design: Design) -> float | None:
    """Return the difference that is clear with 80 % power, in percentage points."""
    # The test is corrected for all comparisons of the question, as if no other one were clear. Test
    # examples are not simulated. None with fewer than two runs, which give no test.
    if design.num_runs < 2:
        return None
    return design.spread * _in_spreads(replace(design, spread=1.0))


def powers(design: Design, asked: AskedRecord, margin: float) -> dict[str, float]:
    """Return the shares of studies that find the forecast, and that find no difference level."""
    spread, unit = design.spread, replace(design, spread=1.0)
    expected = abs(asked.forecast.difference) if asked.forecast else 0.0
    forecast = {"power_of_forecast": _share(unit, expected / spread)} if expected else {}
    return {**forecast, "power_of_level": _share(unit, 0.0, margin / spread)}


@lru_cache(maxsize=256)
def _share(design: Design, difference: float, margin: float | None = None) -> float:
    draws = (_draw(design, number) for number in range(_DRAWS))
    return sum(_is_clear(design, draw, difference, margin) for draw in draws) / _DRAWS


@lru_cache(maxsize=256)
def _in_spreads(design: Design) -> float:
    # A draw that is clear stays clear if the difference grows, so only the others are tested again.
    left = [_draw(design, number) for number in range(_DRAWS)]
    needed = round(POWER * _DRAWS)
    low, high, is_bounded = 0.0, 1.0, False
    for _ in range(_STEPS):
        tried = (low + high) / 2 if is_bounded else high
        clear = [_is_clear(design, draw, tried) for draw in left]
        is_enough = sum(clear) >= needed
        left = [draw for draw, one in zip(left, clear, strict=True) if one == is_enough]
        if is_enough:
            high, is_bounded = tried, True
        else:
            needed -= sum(clear)
            low, high = tried, high if is_bounded else 2 * high
    return high


# Values by run without a difference, and the pooled variances.
Draw = tuple[NDArray[np.float64], list[Blocks]]


def _draw(design: Design, number: int) -> Draw:
    random = np.random.Generator(stream("power", 0, design.num_arms, design.num_runs, number))
    table = random.normal(size=(max(design.num_arms, len(design.weights)), design.num_runs))
    values = np.array(design.weights) @ table[: len(design.weights)]
    groups = {len(table), max(design.num_own, len(design.weights))} if design.are_blocks else ()
    pools = (pooled(table[:arms]) for arms in groups if min(arms, design.num_runs) >= FEWEST)
    return values, [blocks for blocks in pools if blocks is not None]


def _is_clear(design: Design, draw: Draw, difference: float, margin: float | None = None) -> bool:
    """Return whether the difference is clearly above zero, or within a margin."""
    values, blocks = draw
    test = contrast_of(
        dict(enumerate((values + difference).tolist())),
        NO_EXAMPLES,
        blocks=blocks,
        squares=sum(weight**2 for weight in design.weights),
    )
    test = test if margin is None else test.within(margin)
    # The first step of Holm's procedure.
    corrected = test.p_corrected(min((test.p_value or 0.0) * design.num_comparisons, 1.0))
    return corrected <= LEVEL and (margin is not None or test.mean > 0)


def residual_spread(scores: Scores, dataset: str) -> float:
    """Return the standard deviation of scores over runs, beside what all models share."""
    found = [scores.get(model.name, dataset).by_seed or {} for model in scores.finished.models]
    known = [by_seed for by_seed in found if len(by_seed) > 1]
    runs = sorted(set.intersection(*map(set, known))) if known else []
    if len(known) < 2 or len(runs) < 2:
        raise DataError(
            f"{scores.source}: the spread on {dataset} needs two models with the same two runs or "
            "more; give --spread"
        )
    table = np.array([[by_seed[run] for run in runs] for by_seed in known])
    spread = float(np.sqrt(residual_variance(table)))
    if spread <= NO_SPREAD:
        raise DataError(f"{scores.source}: no spread over runs on {dataset}; give --spread")
    return spread
