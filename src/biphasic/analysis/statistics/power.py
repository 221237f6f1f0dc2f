"""The smallest difference that a planned comparison finds, by simulation with the deciding test."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from biphasic.analysis.estimate import LEVEL
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.statistics.blocks import FEWEST, Blocks, pooled, residual_variance
from biphasic.analysis.statistics.contrast import contrast_of
from biphasic.analysis.statistics.crossed import NO_EXAMPLES
from biphasic.analysis.statistics.paired import NO_SPREAD, POWER
from biphasic.errors import DataError
from biphasic.seeds import stream

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
    spread: float


def smallest_detectable(design: Design) -> float | None:
    """Return the difference that is clear with 80 % power, in percentage points."""
    # The test is corrected for all comparisons of the question, as if no other one were clear. Test
    # examples are not simulated. None with fewer than two runs, which give no test.
    if design.num_runs < 2:
        return None
    return design.spread * _in_spreads(replace(design, spread=1.0))


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


# Values by run without a difference, and the pooled variance.
Draw = tuple[NDArray[np.float64], Blocks | None]


def _draw(design: Design, number: int) -> Draw:
    random = np.random.Generator(stream("power", 0, design.num_arms, design.num_runs, number))
    table = random.normal(size=(max(design.num_arms, len(design.weights)), design.num_runs))
    values = np.array(design.weights) @ table[: len(design.weights)]
    has_blocks = design.are_blocks and min(len(table), design.num_runs) >= FEWEST
    return values, pooled(table) if has_blocks else None


def _is_clear(design: Design, draw: Draw, difference: float) -> bool:
    values, blocks = draw
    test = contrast_of(
        dict(enumerate((values + difference).tolist())),
        NO_EXAMPLES,
        blocks=blocks,
        squares=sum(weight**2 for weight in design.weights),
    )
    # The first step of Holm's procedure.
    corrected = test.p_corrected(min((test.p_value or 0.0) * design.num_comparisons, 1.0))
    return test.mean > 0 and corrected <= LEVEL


def residual_spread(scores: Scores, dataset: str) -> float:
    """Return the standard deviation of scores over runs, beside what all models share."""
    found = [scores.get(model.name, dataset).by_seed or {} for model in scores.finished.models]
    known = [by_seed for by_seed in found if len(by_seed) > 1]
    runs = sorted(set.intersection(*map(set, known))) if known else []
    if len(known) < 2 or len(runs) < 2:
        raise DataError(
            f"{scores.source}: two models with the same two runs or more are needed for the spread "
            f"on {dataset}; give --spread"
        )
    table = np.array([[by_seed[run] for run in runs] for by_seed in known])
    spread = float(np.sqrt(residual_variance(table)))
    if spread <= NO_SPREAD:
        raise DataError(f"{scores.source}: no spread over runs on {dataset}; give --spread")
    return spread
