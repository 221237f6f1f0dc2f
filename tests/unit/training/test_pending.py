"""Losses that are read back later."""

import pytest
import torch

from biphasic.training.step import pending as module
from biphasic.training.step.pending import PendingSteps, Position, StepReport

NAN, INF = float("nan"), float("inf")


def step(number: int, loss: float = 2.5, norm: float = 0.5, tokens: int = 100):
    report = StepReport(Position(number - 1), 0, "clm", 1e-3, tokens, tokens)
    return report, torch.tensor(loss), torch.tensor(norm)


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """The time that the clock shows."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_values_are_read_exactly_and_in_order():
    losses = torch.rand(5, generator=torch.Generator().manual_seed(0)).tolist()
    pending = PendingSteps(read_back_every=5)
    pending.begin()
    for number, loss in enumerate(losses):
        assert not pending.are_due
        pending.add(*step(number + 1, loss, loss / 3))
    assert pending.are_due
    read = pending.read_back()
    assert [each.step for each in read] == [1, 2, 3, 4, 5]
    assert [each.loss for each in read] == losses
    assert [each.gradient_norm for each in read] == [
        float(torch.tensor(loss / 3)) for loss in losses
    ]
    assert not pending.are_due


def test_speed_is_that_of_the_time_between_readings(clock):
    pending = PendingSteps(read_back_every=2)
    pending.begin()
    pending.add(*step(1, tokens=300))
    clock[0] += 1
    pending.begin()  # does not begin anew
    pending.add(*step(2, tokens=100))
    clock[0] += 3
    read = pending.read_back()
    assert [each.line.tokens_per_second for each in read] == [100.0, 100.0]
    assert [each.seconds for each in read] == [3.0, 1.0]
    clock[0] += 50  # an evaluation, say
    pending.begin()
    pending.add(*step(3, tokens=100))
    clock[0] += 2
    (last,) = pending.read_back()
    assert (last.seconds, last.line.tokens_per_second) == (2.0, 50.0)


@pytest.mark.parametrize(
    ("loss", "norm", "fault"),
    [
        (NAN, NAN, "loss"),
        (INF, 1.0, "loss"),
        (1.0, NAN, "gradient"),
        (1.0, INF, "gradient"),
    ],
)
def test_faults_are_named(loss, norm, fault):
    pending = PendingSteps(read_back_every=9)
    pending.begin()
    for each in (step(1), step(2), step(3, loss, norm), step(4, NAN, NAN)):
        pending.add(*each)
    read = pending.read_back()
    assert [each.fault for each in read] == [None, None, fault, "loss"]
    assert read[2].before.step == 2
