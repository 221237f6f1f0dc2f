"""Power and Holm's correction, by hand and against simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paired_power import detectable_effect

from biphasic.analysis.statistics.contrast import holm
from biphasic.analysis.statistics.paired import Criterion, detectable, noncentral_t


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


@pytest.mark.parametrize("freedom", [1, 2, 4, 30, 3000, 1_000_000])
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
