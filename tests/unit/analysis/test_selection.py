"""Which runs speak for a model: the best rate of each seed, or one for all."""

import numpy as np
import pytest

from biphasic.analysis.estimate import GridScore, best_per_seed, best_rate


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
