"""Which runs speak for a model: the best rate of each seed, or one for all."""

import numpy as np
import pytest

from biphasic.analysis.estimate import GridScore, best_per_seed, best_rate
from biphasic.analysis.scores.table import (
    DatasetInfo,
    ModelInfo,
    Scores,
    at_one_rate,
    score_of_grid,
    with_averages,
)
from biphasic.analysis.statistics.compare import family_of


def grid(cells):
    """Return runs of `{(rate, seed): (validation, test)}`, in no order."""
    runs = [GridScore(rate, seed, *scores, f"{rate}/{seed}") for (rate, seed), scores in cells]
    return [runs[place] for place in np.random.default_rng(0).permutation(len(runs))]


# Means of validation: 0.6 at 1, 0.65 at 2. Per seed: seed 0 takes 1, seed 1 takes 2.
CELLS = [((1, 0), (0.8, 0.1)), ((2, 0), (0.6, 0.2)), ((1, 1), (0.4, 0.3)), ((2, 1), (0.7, 0.4))]


def test_each_seed_takes_its_own_best_or_all_take_the_best_mean():
    assert [run.test for run in best_per_seed(grid(CELLS))] == [0.1, 0.4]
    assert [run.test for run in best_rate(grid(CELLS))] == [0.2, 0.4]
    assert [run.run for run in best_rate(grid(CELLS))] == ["2/0", "2/1"]


def test_ties_go_to_the_smaller_rate():
    cells = [((rate, seed), (0.5, rate)) for rate in (3, 1, 2) for seed in (0, 1)]
    assert {run.rate for run in best_per_seed(grid(cells))} == {1}
    assert {run.rate for run in best_rate(grid(cells))} == {1}


def test_a_rate_that_lacks_a_seed_cannot_be_the_one_for_all():
    cells = [*CELLS[:2], CELLS[2]]
    # At 2 seed 0 alone has a score, its 0.6 a mean of one; at 1 both have, with a mean of 0.6.
    assert {run.rate for run in best_rate(grid(cells))} == {1}
    assert best_rate(grid([CELLS[0], CELLS[3]])) == ()
    assert best_rate([]) == () == best_per_seed([])


@pytest.mark.parametrize("seed", range(5))
def test_choosing_per_seed_never_has_a_lower_mean_on_validation(seed):
    draw = np.random.default_rng(seed)
    cells = [((r, s), (draw.random(), draw.random())) for r in range(4) for s in range(3)]
    per_seed = sum(run.validation for run in best_per_seed(grid(cells)))
    at_one = sum(run.validation for run in best_rate(grid(cells)))
    naive = max(sum(v for (r, _), (v, _) in cells if r == rate) for rate in range(4))
    assert at_one == pytest.approx(naive)
    assert per_seed >= at_one


@pytest.mark.parametrize(
    ("validation", "tried", "per_seed", "one_rate"),
    [
        # Each seed chooses a rate in the middle, and the best mean is at the highest one.
        ({0.5: (0.0, 0.0), 1: (0.9, 0.1), 3: (0.2, 0.9), 4: (0.8, 0.8)}, (), False, True),
        # One seed chooses the lowest rate, and the best mean is in the middle.
        ({1: (0.1, 0.8), 2: (0.9, 0.79), 3: (0.2, 0.3)}, (), True, False),
        # All runs at the highest rate diverged; equal means are no choice.
        ({1: (0.1, 0.2), 2: (0.9, 0.9)}, (3,), False, False),
        ({1: (0.1, 0.9), 2: (0.9, 0.1)}, (), True, False),
    ],
)
def test_one_rate_is_at_an_end_by_itself(validation, tried, per_seed, one_rate):
    grid = [
        GridScore(float(rate), seed, value, value, None)
        for rate, values in validation.items()
        for seed, value in enumerate(values)
    ]
    score = score_of_grid(
        grid, convention="standard", is_complete=True, tried=[*validation, *tried]
    )
    names = ("d", "e")
    scores = with_averages(Scores(
        "made", "standard", (ModelInfo("m", "m"),),
        tuple(DatasetInfo(name, "SC", "accuracy") for name in names),
        {("m", name): score for name in names},
    ))  # fmt: skip
    for name in (*names, "SC Average"):
        assert scores.get("m", name).is_at_end is per_seed
        assert at_one_rate(scores).get("m", name).is_at_end is one_rate


def test_a_model_without_a_score_at_one_rate_counts_in_its_family():
    full = score_of_grid(grid(CELLS), convention="standard", is_complete=True)
    open_ = score_of_grid(grid([CELLS[0], CELLS[3]]), convention="standard", is_complete=False)
    scores = Scores(
        "made", "standard", tuple(ModelInfo(name, name) for name in "abc"),
        (DatasetInfo("d", "SC", "accuracy"),),
        {("a", "d"): full, ("b", "d"): full, ("c", "d"): open_},
    )  # fmt: skip
    chosen = at_one_rate(scores)
    assert chosen.get("c", "d").estimate is None
    assert family_of(chosen, "d").size == family_of(scores, "d").size == 3
