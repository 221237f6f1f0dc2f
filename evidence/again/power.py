"""How many pretraining runs the primary outcome of again.yaml needs, by simulation.

Usage: .venv/bin/python evidence/again/power.py
"""

from __future__ import annotations

import numpy as np
from primary import MARGIN, ZEROS, task_weights

from biphasic.analysis.estimate import LEVEL
from biphasic.analysis.statistics.contrast import contrast_of
from biphasic.analysis.statistics.crossed import NO_EXAMPLES, CrossedErrors

WEIGHTS = task_weights(ZEROS)
# Standard deviations of the difference between paired runs, in points of score. That of uner_en was
# measured over four pairs of full length (README.md); the others are assumed.
SPREADS = {
    "trec-probe": 1.5,
    "sst2-probe": 1.0,
    "uner_en-probe": 1.5,
    "wnut17-probe": 1.5,
    "uner_en": 3.5,
    "wnut17": 3.0,
}
CORRELATION = 0.3  # of the differences on two tasks, over runs; assumed
EXAMPLE_ERROR = 0.6  # standard error of the outcome over test examples; assumed
STUDIES = 2_000


def share_decided(num_runs: int, difference: float, example_error: float) -> float:
    """Return the share of studies that decide: for a difference if there is one, else for level."""
    random = np.random.default_rng(0)
    spreads = np.array([WEIGHTS[task] * spread for task, spread in SPREADS.items()])
    covariance = np.outer(spreads, spreads) * CORRELATION
    np.fill_diagonal(covariance, spreads**2)
    errors = NO_EXAMPLES
    if example_error:
        errors = CrossedErrors(np.array([example_error**2]), np.zeros(1), 10_000, 10_000, 9_999)
    num_decided = 0
    for _ in range(STUDIES):
        values = random.multivariate_normal(np.zeros(len(spreads)), covariance, num_runs).sum(1)
        shift = difference + example_error * random.normal()
        test = contrast_of(dict(enumerate((values + shift).tolist())), errors)
        if difference:
            num_decided += test.mean > 0 and (test.p_value or 0.0) <= LEVEL
        else:
            num_decided += (test.within(MARGIN).p_value or 0.0) <= LEVEL
    return num_decided / STUDIES


def main() -> None:
    """Print the power of several numbers of runs."""
    spreads = np.array([WEIGHTS[task] * spread for task, spread in SPREADS.items()])
    variance = CORRELATION * spreads.sum() ** 2 + (1 - CORRELATION) * (spreads**2).sum()
    print(f"standard deviation of the outcome's difference over runs: {variance**0.5:.2f} points")
    print("runs | level, runs alone | level, with test examples | 2 points clear, the same two")
    for num_runs in range(6, 17, 2):
        cells = [
            share_decided(num_runs, difference, error)
            for difference in (0.0, MARGIN)
            for error in (0.0, EXAMPLE_ERROR)
        ]
        print(num_runs, *(f"{100 * cell:.0f} %" for cell in cells), sep=" | ")


if __name__ == "__main__":
    main()
