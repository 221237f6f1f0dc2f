"""Exact tests, effect sizes, power and Holm's correction, by hand and against simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paired_power import detectable_effect

from biphasic.analysis.statistics.pair_tests import holm
from biphasic.analysis.statistics.paired import (
    Criterion,
    detectable,
    effect_size,
    noncentral_t,
    sign_flip_test,
    wilcoxon_test,
)


def test_holm_by_hand():
    # Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1: 0.04, 0.06, 0.06, 0.04 -> never falling.
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.7, 0.9]).tolist() == [1.0, 1.0]
    assert holm([]).tolist() == []
    # A comparison without a test counts: 0.02 times 3, 0.03 times 2.
    assert holm([0.03, math.nan, 0.02]) == pytest.approx([0.06, math.nan, 0.06], nan_ok=True)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_keeps_order_and_lies_between_p_and_bonferroni(p_values):
    adjusted = holm(p_values)
    for p_value, new in zip(p_values, adjusted, strict=True):
        assert p_value <= new <= min(1.0, len(p_values) * p_value + 1e-12)
    order = np.argsort(p_values, kind="stable")
    assert (np.diff(np.array(adjusted)[order]) >= 0).all()


def test_sign_flips_are_counted_by_hand():
    # Sums over the signs of 1, 2, 4: +-7, +-5, +-3, +-1. |5| or more: 4 of 8. Observed -1 + 2 + 4.
    found = sign_flip_test([-1.0, 2.0, 4.0])
    assert found.p_value == pytest.approx(4 / 8)
    assert found.floor == 2 / 8


@pytest.mark.parametrize("test", [sign_flip_test, wilcoxon_test])
def test_five_pairs_cannot_give_less_than_one_in_sixteen(test):
    found = test([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.p_value == found.floor == 0.0625
    six = test([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert six.p_value == six.floor == 0.03125


def test_wilcoxon_by_hand_and_where_it_does_not_apply():
    # Ranks 1..4, the smallest negative: W = 1. P(W <= 1) = 2/16, two-sided 4/16.
    assert wilcoxon_test([-1.0, 2.0, 3.0, 4.0]).p_value == pytest.approx(0.25)
    assert wilcoxon_test([1.0, 1.0, 2.0]) is None
    assert wilcoxon_test([0.0, 1.0]) is None
    assert wilcoxon_test([]) is None


@pytest.mark.parametrize("num", [2, 3, 5, 8, 12])
def test_both_tests_are_scipy_s(num):
    from scipy.stats import permutation_test, wilcoxon

    for seed in range(5):
        differences = np.random.default_rng(seed).normal(0.4, 1.0, num)
        by_flips = permutation_test(
            (differences, np.zeros(num)),
            lambda first, second, axis: np.mean(first - second, axis=axis),
            permutation_type="samples", vectorized=True, n_resamples=np.inf,
        )  # fmt: skip
        assert sign_flip_test(differences).p_value == pytest.approx(by_flips.pvalue)
        by_ranks = wilcoxon(differences, method="exact")
        assert wilcoxon_test(differences).p_value == pytest.approx(by_ranks.pvalue)


def test_sums_that_differ_by_rounding_alone_are_ties():
    # 0.1 + 0.2 - 0.3 is 5.6e-17 in floating point; all eight sums are 0, 0.2, 0.4 or 0.6 in size.
    assert sign_flip_test([0.1, 0.2, -0.3]).p_value == 1.0
    assert sign_flip_test([0.0, 0.0]).p_value == 1.0


def test_many_pairs_are_sampled_with_a_fixed_seed():
    differences = np.random.default_rng(0).normal(0.5, 1.0, 40)
    first, second = sign_flip_test(differences), sign_flip_test(differences)
    assert first == second
    assert 0 < first.p_value < 0.05
    assert first.floor == 1e-5
    assert sign_flip_test(np.ones(40)).p_value >= first.floor


def test_effect_size_and_its_interval_by_their_definition():
    from scipy.stats import nct

    differences = [0.2, 0.4, 0.9, 0.1, 0.4]
    # Mean 0.4; squares 0.04 + 0 + 0.25 + 0.09 + 0 = 0.38; 0.38 / 4 = 0.095.
    found = effect_size(differences)
    assert found.value == pytest.approx(0.4 / math.sqrt(0.095))
    t_value = found.value * math.sqrt(5)
    assert nct.cdf(t_value, 4, found.low * math.sqrt(5)) == pytest.approx(0.975, abs=1e-6)
    assert nct.cdf(t_value, 4, found.high * math.sqrt(5)) == pytest.approx(0.025, abs=1e-6)
    assert effect_size([0.3]) is None
    assert effect_size([0.3, 0.3]) is None


@pytest.mark.parametrize("freedom", [1, 2, 4, 30])
@pytest.mark.parametrize("t_value", [-3.0, -0.4, 0.0, 0.3, 1.0, 6.0])
def test_noncentral_t_is_scipy_s_where_that_is_sound(freedom, t_value):
    from scipy.stats import nct

    for noncentrality in (-1.0, 0.0, 0.5, 3.0):
        expected = nct.cdf(t_value, freedom, noncentrality)
        # With one degree of freedom the integrand has a kink.
        tolerance = 1e-4 if freedom == 1 else 3e-6
        assert noncentral_t(t_value, freedom, noncentrality) == pytest.approx(
            expected, abs=tolerance
        )


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_effect_sizes_of_hardly_any_spread_have_an_interval(scale):
    found = effect_size([scale + 0.001, scale - 0.001, scale])
    assert found.low < found.value < found.high


def test_the_detectable_difference_is_seen_four_times_in_five():
    from scipy.stats import ttest_1samp

    draw = np.random.default_rng(1)
    samples = draw.normal(detectable_effect(5), 1.0, size=(20_000, 5))
    seen = (ttest_1samp(samples, 0.0, axis=1).pvalue < 0.05).mean()
    assert seen == pytest.approx(0.8, abs=0.01)


def test_a_difference_must_pass_every_criterion():
    one = Criterion(error=2.0, freedom=8, critical=3.5)
    assert detectable((one,)) == pytest.approx(2 * detectable((one._replace(error=1.0),)))
    assert one.miss(detectable((one,))) == pytest.approx(0.2)
    # Two alike: each may miss a tenth; another reason takes a tenth of all.
    assert one.miss(detectable((one, one))) == pytest.approx(0.1)
    assert one.miss(detectable((one,), other_misses=0.1)) == pytest.approx(0.1)


def test_more_pairs_detect_smaller_differences():
    assert detectable_effect(10) < detectable_effect(5) < detectable_effect(2)
