"""Arms that share pretraining runs: the pooled variance, its check, and Tukey's correction."""

import dataclasses

import numpy as np
import pytest
from made_scores import made_scores

from biphasic.analysis.statistics.compare import family_of
from biphasic.analysis.statistics.contrast import (
    SPREAD_LEVEL,
    blocks_for,
    blocks_of,
    contrast,
    pooled,
)
from biphasic.analysis.statistics.paired import critical_range, range_p_values
from biphasic.analysis.words import words

RUNS = [0.0, 5.0, 1.0]
"""What runs have in common."""


def of_runs(by_model, **options):
    scores = made_scores(by_model, **options)
    return dataclasses.replace(scores, num_pretraining_runs=min(map(len, by_model.values())))


def rest(*values):
    return [run + value for run, value in zip(RUNS, values, strict=True)]


# Residuals of a two-way table: rows and columns add up to zero.
EVEN = {"a": rest(51, 49, 50), "b": rest(39, 40, 41), "c": rest(30, 31, 29), "d": rest(20, 20, 20)}


@pytest.mark.parametrize("num_arms", [2, 3, 5, 12, 40])
@pytest.mark.parametrize("freedom", [2, 8, 33.5, 400])
def test_studentized_ranges_agree_with_scipy(num_arms, freedom):
    from scipy.stats import studentized_range

    values = np.array([0.0, 0.5, 2.0, 4.0, 7.0, 12.0])
    expected = studentized_range.sf(values, num_arms, freedom)
    assert range_p_values(values, num_arms, freedom) == pytest.approx(expected, abs=1e-5)


def test_critical_ranges_are_those_of_tables():
    # Tukey's table at 5 %: 4.89 for 5 arms and 8 degrees of freedom, 3.77 for 3 and 12.
    assert critical_range(5, 8) == pytest.approx(4.89, abs=0.005)
    assert critical_range(3, 12) == pytest.approx(3.77, abs=0.005)


def test_the_pooled_variance_by_hand():
    # Means 50, 40, 30 and 20 and runs' effects are removed; residuals 1, -1, 0; -1, 0, 1; 0, 1, -1;
    # 0, 0, 0. Squares add up to 6, over (4 - 1) x (3 - 1) degrees of freedom.
    blocks = blocks_of(of_runs(EVEN), "abcd", "d")
    assert (blocks.num_arms, blocks.num_runs, blocks.freedom) == (4, 3, 6)
    assert blocks.variance == pytest.approx(1.0)
    assert blocks.are_spreads_equal


def test_a_difference_of_arms_by_hand():
    # a - d is 30 with squared error 2 x 1 / 3; its own spread, 1, is smaller than the pooled 1.41.
    compared = family_of(of_runs(EVEN), "d").compare("a", "d")
    assert compared.mean == pytest.approx(30.0)
    assert compared.deciding.error == pytest.approx((2 / 3) ** 0.5)
    assert compared.deciding.freedom == 6
    # t(0.975; 6) = 2.447.
    assert compared.interval == pytest.approx((30 - 2.447 * 0.8165, 30 + 2.447 * 0.8165), abs=1e-3)
    assert (compared.verdict, compared.is_pooled) == ("higher", True)


def test_a_pair_with_a_larger_spread_keeps_its_own():
    # a - b is 12, 9, 9: its deviation 1.73 exceeds the pooled 1.41.
    found = family_of(of_runs(EVEN), "d").compare("a", "b")
    assert found.deciding.error == pytest.approx((3 / 3) ** 0.5)
    # Its own test has 2 degrees of freedom, the deciding one 6.
    assert found.p_value < found.p_alone == found.p_corrected(found.p_value) < found.p_corrected(1)
    of_one, of_four = (
        dataclasses.replace(found, family_size=number, num_arms=None) for number in (1, 4)
    )
    assert of_one.detectable < of_four.detectable


def test_tukey_corrects_for_all_pairs_and_a_pair_s_own_test_still_counts():
    draw = np.random.default_rng(2)
    scores = of_runs({name: draw.normal(50, 1, 3) for name in "abcde"})
    found = family_of(scores, "d")
    assert found.uses_blocks
    for first, second in (("a", "b"), ("c", "e")):
        compared = found.compare(first, second)
        t_value = abs(compared.mean) / compared.deciding.error
        tukey = range_p_values(t_value * 2**0.5, 5, 8)[0]
        assert compared.p_adjusted == pytest.approx(max(tukey, compared.p_alone))


def test_where_spreads_differ_pairs_are_tested_by_themselves():
    draw = np.random.default_rng(1)
    spreads = {"a": 0.01, "b": 0.01, "c": 0.01, "d": 8.0}
    scores = of_runs({name: 50 + spread * draw.normal(size=5) for name, spread in spreads.items()})
    found = family_of(scores, "d")
    assert found.blocks.spread_p <= SPREAD_LEVEL
    assert not found.uses_blocks
    single = family_of(dataclasses.replace(scores, num_pretraining_runs=1), "d")
    assert (found.corrected.p_adjusted >= single.corrected.p_adjusted - 1e-12).all()
    # Both tests count for the interval and the detectable difference of a quiet pair, too.
    quiet, alone = (family.compare("a", "b") for family in (found, single))
    assert quiet.interval[1] - quiet.interval[0] > 100 * (alone.interval[1] - alone.interval[0])
    assert quiet.detectable > 100 * alone.detectable
    low, high = quiet.interval
    assert (low < 0 < high) == (quiet.p_value > 0.05)
    sentence = words().method(found)
    assert sentence.startswith("The spreads of the arms differ")


def test_the_check_of_equal_spreads_is_never_certain():
    spreads = np.array([1e-6, 1e-6, 1e-6, 1e-6, 1.0])[:, None]
    table = spreads * np.random.default_rng(0).normal(size=(5, 5))
    assert pooled(table).spread_p == pytest.approx(1e-4)  # one in 9,999 draws and the table itself


def test_the_check_of_equal_spreads_has_its_level():
    draw = np.random.default_rng(3)
    differ = [pooled(draw.normal(size=(5, 3))).spread_p <= SPREAD_LEVEL for _ in range(2_000)]
    assert np.mean(differ) == pytest.approx(SPREAD_LEVEL, abs=0.025)
    spreads = np.array([1, 1, 1, 1, 10])[:, None]
    seen = [pooled(spreads * draw.normal(size=(5, 5))).spread_p <= SPREAD_LEVEL for _ in range(300)]
    assert np.mean(seen) > 0.8


@pytest.mark.parametrize(
    "by_model",
    [
        {"a": [1.0, 2.0, 4.0], "b": [0.0, 5.0, 1.0]},  # two arms: nothing to pool
        {"a": [1.0, 2.0], "b": [0.0, 5.0], "c": [3.0, 1.0]},  # two runs: nothing to check
        {"a": [1.0, 2.0, 4.0], "b": [0.0, 5.0, 1.0], "c": {0: 3.0, 1: 1.0, 7: 2.0}},
    ],
    ids=["arms", "runs", "other runs"],
)
def test_what_cannot_be_pooled_is_tested_by_pairs(by_model):
    assert family_of(of_runs(by_model), "d").blocks is None


def test_a_run_that_one_arm_lacks_is_why_variances_are_not_pooled():
    four = {name: [*EVEN[name], 1.0] for name in "abc"}  # all share three runs
    found = family_of(of_runs({**four, "c": EVEN["c"]}), "d")
    assert found.blocks is None
    assert "the same runs of all arms" in words().method(found)


def test_fine_tuning_seeds_are_not_pooled():
    assert family_of(made_scores(EVEN), "d").blocks is None


def test_a_difference_of_differences_has_the_pooled_variance():
    # (a - b) - (c - d): weights 1, -1, -1, 1, so 4 x 1 / 3.
    weights = {("a", "d"): 1.0, ("b", "d"): -1.0, ("c", "d"): -1.0, ("d", "d"): 1.0}
    scores = of_runs(EVEN)
    found = contrast(scores, weights, blocks=blocks_for(scores, weights))
    assert found.mean == pytest.approx(0.0)
    # Of each run 2, -2, 0: a deviation of 2, as large as the pooled one.
    assert found.deciding.error == pytest.approx((4 / 3) ** 0.5)
    assert found.is_pooled
    # A sum whose weights do not add up to zero contains the runs' own effect.
    assert blocks_for(scores, {("a", "d"): 1.0}) == []
