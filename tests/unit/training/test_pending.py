"""Losses that are read back later."""

import torch

from biphasic.training.step.pending import PendingSteps, Position, StepReport


def step(number: int, loss: float = 2.5, norm: float = 0.5, tokens: int = 100):
    report = StepReport(Position(number - 1), 0, "clm", 1e-3, tokens, tokens)
    return report, torch.tensor(loss), torch.tensor(norm)


def test_speed_is_that_of_the_time_between_readings(now):
    pending = PendingSteps(read_back_every=2)
    pending.begin()
    pending.add(*step(1, tokens=300))
    now[0] += 1
    pending.begin()  # does not begin anew
    pending.add(*step(2, tokens=100))
    now[0] += 3
    read = pending.read_back()
    assert [each.line.tokens_per_second for each in read] == [100.0, 100.0]
    assert [each.seconds for each in read] == [3.0, 1.0]
    now[0] += 50  # an evaluation, say
    pending.begin()
    pending.add(*step(3, tokens=100))
    now[0] += 2
    (last,) = pending.read_back()
    assert (last.seconds, last.line.tokens_per_second) == (2.0, 50.0)
