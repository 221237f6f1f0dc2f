"""How long the rest of a study takes: by operations, by what runs now, by what waits for what."""

import pytest

from biphasic.execution.display import Pace
from trivial_jobs import item


def test_nothing_is_estimated_before_the_first_progress(now):
    pace = Pace([item("a"), item("b")], num_slots=2)
    assert pace.seconds_left() is None
    pace.started(item("a"))
    pace.progress("a", 0, 8)
    now[0] += 5
    assert pace.seconds_left() is None


def test_speed_is_estimated_from_running_jobs(now):
    a, b = item("a", cost=10), item("b", cost=20)
    fit = item("fit", kind="finetune", cost=5.0, needs="a")
    pace = Pace([a, b, fit], num_slots=1)
    pace.started(a)
    now[0] += 60  # its process starts
    pace.progress("a", 4, 8)  # it was resumed
    now[0] += 10
    pace.progress("a", 6, 8)
    # A quarter of 10 units in 10 s: 4 s each. 2.5 + 20 are left, and 5 of a kind without example.
    assert pace.seconds_left() == (pytest.approx(110.0), pytest.approx(110.0))
    pace.stopped(a, is_done=True)
    assert pace.seconds_spent() == pytest.approx(70.0)
    # It ran five of eight steps, of 10 units: 11.2 s for each, its start included.
    assert pace.seconds_left() == (pytest.approx(280.0), pytest.approx(280.0))


def test_a_grid_that_is_extended_has_more_to_do(now):
    grid, other = item("grid", kind="finetune"), item("other", kind="finetune")
    pace = Pace([grid, other], num_slots=1)
    pace.started(grid)
    pace.progress("grid", 0, 4)
    now[0] += 20
    pace.progress("grid", 4, 4)
    assert pace.seconds_left() == pytest.approx((20.0, 20.0))
    pace.progress("grid", 4, 6)  # two more of 5 s are due
    assert pace.seconds_left() == pytest.approx((30.0, 30.0))
    now[0] += 10
    pace.stopped(grid, is_done=True)
    assert pace.seconds_left() == pytest.approx((20.0, 20.0))


def test_the_end_waits_for_the_longest_chain(now):
    first, second, other = item("1", cost=10), item("2", cost=30, needs="1"), item("3", cost=4)
    wide = item("4", cost=20, slots=2)
    pace = Pace([first, second, other, wide], num_slots=2)
    pace.started(other)
    now[0] += 4
    pace.stopped(other, is_done=True)
    # 60 units on two slots are 30 s, but the chain takes 40.
    assert pace.seconds_left() == (pytest.approx(60.0), pytest.approx(40.0))


def test_jobs_count_where_operations_are_not_known(now):
    items = [item("a", cost=0.0), item("b", cost=7.0), item("c", kind="finetune", cost=9.0)]
    # No speed of one kind says anything of the other then.
    for given, seconds in ((items[:2], pytest.approx((10.0, 10.0))), (items, None)):
        pace = Pace(given, num_slots=1)
        pace.started(items[0])
        now[0] += 10
        pace.stopped(items[0], is_done=True)
        assert pace.seconds_left() == seconds


def test_jobs_of_other_processes_do_not_affect_the_speed():
    a, b = item("a"), item("b")
    pace = Pace([a, b], num_slots=1)
    pace.started(a)
    pace.stopped(a, is_done=True, is_example=False)
    assert pace.seconds_left() is None
