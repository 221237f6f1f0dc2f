"""Warm-up, stable, linear decay."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biphasic.errors import ConfigError
from biphasic.objectives.lr import LearningRateConfig, check_learning_rate, learning_rate


def rates(total_steps: int, **settings: float) -> list[float]:
    config = LearningRateConfig.model_validate(settings)
    return [learning_rate(config, step, total_steps=total_steps) for step in range(total_steps)]


def test_by_hand():
    # Warm-up: 1/4, 2/4, 3/4, 4/4 of 8. Decay over three steps: 3/4, 2/4, 1/4.
    expected = [2, 4, 6, 8, 8, 8, 8, 6, 4, 2]
    assert rates(10, peak=8, warmup_steps=4, decay_steps=3) == expected
    assert rates(5, peak=12, warmup_steps=2, decay_steps=3) == [6, 12, 9, 6, 3]
    assert rates(3, peak=0.5) == [0.5, 0.5, 0.5]


@given(
    st.integers(0, 20),
    st.integers(0, 20),
    st.integers(0, 20),
    st.integers(1, 50),
    st.integers(0, 9),
)
def test_shape(warmup, stable, decay, longer, seed):
    total = warmup + stable + decay
    found = rates(total, peak=1.0, warmup_steps=warmup, decay_steps=decay)
    assert all(0 < rate <= 1 for rate in found)
    assert found[:warmup] == sorted(found[:warmup])
    assert found[warmup : warmup + stable] == [1.0] * stable
    assert found[warmup + stable :] == sorted(found[warmup + stable :], reverse=True)
    # Until the decay begins, the length of the run does not matter: arms share their trunk.
    other = rates(total + longer, peak=1.0, warmup_steps=warmup, decay_steps=decay)
    assert other[: warmup + stable] == found[: warmup + stable]


def test_too_long_schedule_is_refused():
    config = LearningRateConfig(peak=1.0, warmup_steps=6, decay_steps=5)
    check_learning_rate(config, total_steps=11)
    with pytest.raises(ConfigError) as caught:
        check_learning_rate(config, total_steps=10)
    assert str(caught.value) == (
        "learning_rate: warmup_steps 6 + decay_steps 5 exceed the 10 steps; shorten one of them"
    )
