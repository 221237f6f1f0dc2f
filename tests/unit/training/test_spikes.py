"""Loss spikes are reported once each."""

import pytest

from biphasic.training import loop
from biphasic.training import loop as spikes
from biphasic.training.loop import LEAST, WINDOW, SpikeWatch
from short_runs import CLM, MLM, assert_same, metrics


def lines(losses, *, phase: int = 0, first: int = 1) -> list[dict]:
    return [
        {"step": step, "phase": phase, "loss": loss}
        for step, loss in enumerate(losses, start=first)
    ]


def warnings(watch: SpikeWatch, given: list[dict]) -> list[str]:
    texts = (watch.see(line["step"], line["loss"]) for line in given)
    return [text for text in texts if text]


def wave(count: int) -> list[float]:
    """Losses of median 3, of which two thirds are 0.1 away from it."""
    return [(2.9, 3.0, 3.1)[number % 3] for number in range(count)]


@pytest.fixture
def recipe(make_recipe):
    return make_recipe({"objective": "clm", "steps": 400}, {"objective": "mlm", "steps": 400})


def test_a_spike_is_reported_at_its_first_step(recipe):
    watch = SpikeWatch(recipe, lines(wave(WINDOW)))
    # Median 3.0 and median distance 0.1: the limit is 3 + 6 * 0.14826 = 3.88956.
    given = lines([3.88, 3.89, 7.0, 5.0, 3.0, 4.5], first=WINDOW + 1)
    assert warnings(watch, given) == [
        f"step {WINDOW + 1}: loss spike, 3.890 is 6 standard deviations above the median 3.000 of "
        "the last 128 losses",
        f"step {WINDOW + 5}: loss spike, 4.500 is 10 standard deviations above the median 3.000 of "
        "the last 128 losses",
    ]


def test_a_level_that_stays_is_the_new_normal(recipe):
    watch = SpikeWatch(recipe, lines(wave(WINDOW)))
    higher = [loss + 3 for loss in wave(WINDOW)]
    assert len(warnings(watch, lines(higher, first=WINDOW + 1))) == 1
    assert not warnings(watch, lines([6.0], first=2 * WINDOW + 1))


def test_few_or_constant_losses_are_not_compared(recipe):
    assert not warnings(SpikeWatch(recipe), lines([*wave(LEAST - 1), 50.0]))
    assert len(warnings(SpikeWatch(recipe), lines([*wave(LEAST), 50.0]))) == 1
    assert not warnings(SpikeWatch(recipe), lines([*[3.0] * WINDOW, 50.0]))


def test_losses_of_other_phases_and_objectives_are_not_compared(recipe, make_recipe):
    watch = SpikeWatch(recipe, lines(wave(400)))
    assert not warnings(watch, lines([9.0] * 5, phase=1, first=401))
    clm_and_mlm = [{"objective": "clm"}, {"objective": "mlm"}]
    turns = {"objective": "alternate", "steps": 400, "every": 1, "objectives": clm_and_mlm}
    both = [loss for one in wave(WINDOW) for loss in (one, one + 4)]
    watch = SpikeWatch(make_recipe(turns), lines(both))
    (text,) = warnings(watch, lines([5.0], first=len(both) + 1))
    assert "loss spike, 5.000" in text


@pytest.mark.slow
def test_spikes_change_no_result_and_are_seen_after_a_resume(train, make_recipe, monkeypatch):
    monkeypatch.setattr(spikes, "LEAST", 2)
    monkeypatch.setattr(spikes, "DEVIATIONS", -100.0)  # every step that is compared
    recipe = make_recipe({**CLM, "steps": 5}, MLM)
    warned: list[str] = []
    state = train(recipe, "one", options={"warn": warned.append})
    assert [text.partition(":")[0] for text in warned] == ["step 2", "step 7"]

    # As docs/recovery.md says, these steps are counted from 0, and finished ones in the log.
    logged = {line["step"]: line["loss"] for line in metrics(state) if "loss" in line}
    for text, finished in zip(warned, (3, 8), strict=True):
        assert f"loss spike, {logged[finished]:.3f} is" in text
    losses = [*logged.values()]
    warned.clear()
    stops = iter([False, False, True])
    options = {"warn": warned.append, "should_stop": lambda: next(stops, False)}
    with pytest.raises(loop.StoppedError):
        train(recipe, "two", options=options)
    monkeypatch.setattr(spikes, "DEVIATIONS", 6.0)
    seen: list[float] = []
    original = SpikeWatch.see

    def see(watch, number, loss):
        seen.append(loss)
        return original(watch, number, loss)

    monkeypatch.setattr(SpikeWatch, "see", see)
    assert_same(state, train(recipe, "two", options=options))
    assert seen == losses  # those before the resume, too
