"""Where phases lie, and which rate each step has."""

import pytest
from pydantic import TypeAdapter

from biphasic.objectives.lr import LearningRateConfig
from biphasic.objectives.phases import Phase
from biphasic.training.timeline import place_phases

SCHEDULE = LearningRateConfig(peak=1.0, warmup_steps=2, decay_steps=1)


def clm(steps: int, **settings: object) -> Phase:
    return TypeAdapter(Phase).validate_python({"objective": "clm", "steps": steps, **settings})


def mlm(steps: int, **settings: object) -> Phase:
    return TypeAdapter(Phase).validate_python({"objective": "mlm", "steps": steps, **settings})


def place(*phases, learning_rate=SCHEDULE):
    return place_phases(phases, learning_rate, max_seqlen=32, rows_per_step=4)


def rates(*phases, **settings) -> list[float]:
    return [
        placed.learning_rate(step)
        for placed in place(*phases, **settings)
        for step in range(placed.start, placed.end)
    ]


def test_one_schedule_spans_all_phases():
    assert rates(clm(2), mlm(3)) == [0.5, 1.0, 1.0, 1.0, 0.5]


def test_a_phase_may_begin_a_schedule_which_ends_the_one_before():
    own = {"peak": 8.0, "warmup_steps": 0, "decay_steps": 1}
    expected = [0.5, 1.0, 0.5, 8.0, 8.0, 4.0]
    assert rates(clm(3), mlm(3, learning_rate=own)) == expected
    # It lasts until the next one that begins anew.
    assert rates(clm(3), mlm(1, learning_rate=own), clm(2)) == expected
    assert rates(clm(3), mlm(3, learning_rate=own), clm(1, learning_rate={"peak": 2.0})) == [
        *expected,
        2.0,
    ]


def test_the_first_phase_may_have_its_own_schedule():
    assert rates(clm(2, learning_rate={"peak": 3.0})) == [3.0, 3.0]


def test_a_phase_scales_the_rate():
    assert rates(clm(2), mlm(3, learning_rate_scale=0.1)) == pytest.approx([0.5, 1, 0.1, 0.1, 0.05])


def test_rows_positions_and_frequencies():
    placed = place(clm(1), clm(2, max_seqlen=64, rows_per_step=2, rope_theta=9e4), mlm(1))
    shapes = [(each.batches.max_seqlen, each.batches.rows_per_step) for each in placed]
    assert shapes == [(32, 4), (64, 2), (32, 4)]
    assert [each.longest for each in placed] == [32, 64, 64]  # positions stay
    assert [each.rope_theta for each in placed] == [None, 9e4, 9e4]
    assert [(each.start, each.end) for each in placed] == [(0, 1), (1, 3), (3, 4)]


def test_an_objective_knows_its_place_in_the_phase():
    falling = mlm(3, mlm_probability=0.4, final_mlm_probability=0.2)
    _, second = place(clm(5), falling)
    found = [second.objective(step).determinants(0)["mlm_probability"] for step in range(5, 8)]
    assert found == pytest.approx([0.4, 0.3, 0.2])
