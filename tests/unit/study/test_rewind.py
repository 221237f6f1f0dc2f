"""`pretrain` goes on by itself after steps that are not finite."""

from __future__ import annotations

import io
import json
import math
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from biphasic import pretrain
from biphasic.config import parse_config
from biphasic.errors import ConfigError, DivergedError
from biphasic.study.gc.pins import read_pins
from biphasic.study.inputs import corpus
from biphasic.training import loop
from biphasic.training.recipe import Recipe
from biphasic.training.step.input import StepRows

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unprobed")]

RAW = {
    "model": "pico",
    "max_seqlen": 32,
    "rows_per_step": 2,
    "learning_rate": {"peak": 1e-3},
    "phases": [{"objective": "clm", "steps": 6}],
}
RECIPE = parse_config(Recipe, RAW, where="test")


@pytest.fixture
def said() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def run(monkeypatch, prepared, tmp_path, said):
    """Pretrain on a tiny corpus."""
    monkeypatch.setattr(corpus, "prepare_corpus", lambda *_, **__: prepared)

    def pretrain_here(root: str = "root", recipe: Recipe = RECIPE, **options) -> Path:
        with redirect_stderr(said):
            return pretrain(recipe, root=tmp_path / root, **options)

    return pretrain_here


@pytest.fixture
def poison(monkeypatch, prepared):
    """Make the loss of some steps not finite whenever it is computed."""

    def apply(*steps: int) -> None:
        rows = StepRows(RECIPE, prepared.open())
        bad = [rows.batch(step).packed.input_ids.tobytes() for step in steps]
        original = loop.pass_loss

        def poisoned(model, given, **options):
            is_bad = given.input_ids.numpy().tobytes() in bad
            return original(model, given, **options) * (math.nan if is_bad else 1.0)

        monkeypatch.setattr(loop, "pass_loss", poisoned)

    return apply


def recorded(state: Path) -> dict:
    return json.loads((state / "state.json").read_text())


def test_a_run_rewinds_and_its_state_says_so(run, poison, said, tmp_path):
    poison(2, 4)
    state = run(rewinds=2)
    assert (
        "the loss was not finite at step 2; rewind 1 of 2, with skip_steps: [2]" in said.getvalue()
    )
    assert "at step 4; rewind 2 of 2, with skip_steps: [2, 4]" in said.getvalue()
    assert recorded(state)["recipe"]["skip_steps"] == [2, 4]
    # The same as if both had been given, and the only results that cleaning keeps.
    whole = run("other", skip_steps=[4, 2])
    assert whole.name == state.name
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (state / name).read_bytes() == (whole / name).read_bytes()
    assert [pin.id for pin in read_pins(tmp_path / "root/store")] == [state.name]
    assert run(recipe=RECIPE.skipping([2, 4])) == state  # it exists, so it is not trained again


def test_rewinds_are_limited(run, poison):
    poison(2, 4)
    with pytest.raises(DivergedError, match="step 4: the loss is not finite"):
        run(rewinds=1)
    with pytest.raises(DivergedError, match="step 2: the loss is not finite"):
        run("other")


def test_a_fault_that_does_not_come_again_changes_no_identity(run, monkeypatch, said):
    original, calls = loop.pass_loss, []

    def once(model, given, **options):
        calls.append(1)
        return original(model, given, **options) * (math.nan if len(calls) == 3 else 1.0)

    monkeypatch.setattr(loop, "pass_loss", once)
    state = run(rewinds=1)
    assert "at step 2; rewind 1 of 1, with skip_steps: []" in said.getvalue()
    monkeypatch.setattr(loop, "pass_loss", original)
    assert state.name == run("other").name
    assert "skip_steps" not in recorded(state)["recipe"]


def test_a_held_out_loss_is_not_skipped(run, monkeypatch):
    monkeypatch.setattr(
        "biphasic.training.records.heldout.HeldoutLoss.evaluate", lambda *_, **__: {"clm": math.nan}
    )
    with pytest.raises(DivergedError, match=r"step 5: .*held-out .*not finite"):
        run(rewinds=3)


def test_a_step_that_does_not_exist_is_refused_before_any_work(run, tmp_path):
    with pytest.raises(ConfigError, match=r"skip_steps: .* 6; .* 0 to 5"):
        run(skip_steps=[6])
    assert not (tmp_path / "root").exists()
