"""Which rate is chosen, and which is tried next."""

from __future__ import annotations

import pytest

from biphasic.analysis.figures.tuning import TrialRecord
from biphasic.errors import ConfigError
from biphasic.study.tune.search import as_good, best, edge_of, next_rate, parse_rates


def trials(losses: dict[float, float | None]) -> list[TrialRecord]:
    return [
        TrialRecord(arm="a", peak=peak, loss=loss, state="s", lost="" if loss else "diverged")
        for peak, loss in losses.items()
    ]


@pytest.mark.parametrize(
    ("losses", "choice", "edge", "following"),
    [
        ({1e-3: 5.0, 2e-3: 4.0, 4e-3: 4.5}, 2e-3, "", None),
        ({1e-3: 4.0, 2e-3: 4.2, 4e-3: 4.5}, 1e-3, "lowest", 5e-4),
        ({1e-3: 5.0, 2e-3: 4.5, 4e-3: 4.2}, 4e-3, "highest", 8e-3),
        # A lost run bounds the best one as a worse one does.
        ({1e-3: 5.0, 2e-3: 4.5, 4e-3: None}, 2e-3, "", None),
        ({1e-3: None, 2e-3: None}, None, "lowest", 5e-4),
        # Of equal losses the lower rate; rungs are as far apart as those at the edge.
        ({1e-3: 4.0, 2e-3: 4.0, 8e-3: 4.5}, 1e-3, "lowest", 5e-4),
        ({1e-3: 4.5, 2e-3: 4.4, 8e-3: 4.0}, 8e-3, "highest", 3.2e-2),
        ({3e-4: 4.0, 9e-4: 4.1}, 3e-4, "lowest", 1e-4),
        ({1e-3: 4.0}, 1e-3, "lowest", 5e-4),
    ],
)
def test_the_lowest_loss_is_chosen_and_an_edge_leads_beyond(losses, choice, edge, following):
    found = trials(losses)
    chosen = best(found)
    assert (chosen.peak if chosen else None) == choice
    assert edge_of(found) == edge
    assert next_rate(found) == following


def test_rates_as_good_are_those_within_a_hundredth_of_a_nat():
    found = trials({1e-3: 4.0101, 2e-3: 4.0, 4e-3: 4.0099, 8e-3: None})
    assert as_good(found, unit="nats per pair") == (4e-3,)
    assert as_good(found, unit="squared distance per text") == ()
    assert as_good(trials({1e-3: None}), unit="nats per token") == ()


def test_rates_are_read_in_any_order():
    assert parse_rates("2e-3,5e-4, 1e-3") == (5e-4, 1e-3, 2e-3)


@pytest.mark.parametrize(
    "text", ["", "1e-3,", "a", "0", "-1e-3", "nan", "inf", "1e-3;2e-3", "1e-3,0.001"]
)
def test_what_is_no_list_of_rates_is_refused(text):
    problem = "lists a rate twice" if text == "1e-3,0.001" else "expected positive numbers"
    with pytest.raises(ConfigError, match=f"--rates: {problem}"):
        parse_rates(text)
