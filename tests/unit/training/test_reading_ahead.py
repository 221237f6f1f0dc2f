"""Data made ready while a step is computed."""

import threading

import pytest

from biphasic.data.rows import RowReader
from biphasic.errors import DataError
from biphasic.objectives.clm import Clm
from biphasic.training import loop
from biphasic.training.step.pending import StepReport
from short_runs import CLM, MIX, MLM, assert_same

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def ahead(monkeypatch):
    monkeypatch.setattr(loop, "steps_ahead", lambda _: 2)
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == before


def test_states_are_the_same(train, make_recipe, monkeypatch):
    longer = {**MIX, "max_seqlen": 64, "rows_per_step": 5}
    recipe = make_recipe(CLM, longer, {**MLM, "selection": "word"})
    with_thread = train(recipe, "with")
    monkeypatch.setattr(loop, "steps_ahead", lambda _: 0)
    assert_same(train(recipe, "without"), with_thread)


def test_no_thread_outlives_an_interrupted_run(train, make_recipe):
    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(make_recipe(CLM), options={"report": interrupt})


def test_rows_are_read_by_another_thread(train, make_recipe, monkeypatch):
    readers: list[str] = []
    original = Clm.supervise

    def spy(objective, *arguments, **options):
        readers.append(threading.current_thread().name.partition("_")[0])
        return original(objective, *arguments, **options)

    monkeypatch.setattr(Clm, "supervise", spy)
    train(make_recipe(CLM), options={"heldout_objectives": ()})
    assert readers == 3 * ["biphasic-prefetch"]


def test_errors_stop_the_step_that_they_belong_to(tmp_path, train, make_recipe, monkeypatch):
    error = DataError("shard 3 is gone")
    original = RowReader.batch
    calls: list[int] = []

    def broken(reader, step):
        if step == 4 and calls:
            raise error
        return original(reader, step)

    monkeypatch.setattr(RowReader, "batch", broken)
    steps: list[int] = []

    def report(done: StepReport) -> None:
        steps.append(done.step)

    calls.append(1)
    options = {"report": report, "checkpoint_every": 1}
    with pytest.raises(DataError) as caught:
        train(make_recipe({**CLM, "steps": 9}), options=options)
    assert caught.value is error
    assert steps == [1, 2, 3, 4]
    last = max((tmp_path / "progress").glob("*/step-*"))
    assert last.name == "step-00000004"
