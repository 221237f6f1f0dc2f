"""How a state's own run goes on."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest

from biphasic.errors import CheckpointError, DataError
from biphasic.model.loading.hub import fetch_model
from biphasic.store import STATE, is_complete, seal_folder
from biphasic.study.inputs.models import find_continuation
from biphasic.training.lineage import Lineage
from biphasic.training.loop import RunOptions, train_segment
from biphasic.training.run import first_model

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unprobed")]

CLM = {"objective": "clm", "steps": 6}
SCHEDULE = {"peak": 2e-3, "warmup_steps": 1, "decay_steps": 2}


@pytest.fixture
def state(tmp_path, training_data, make_recipe):
    """Train to some step of a run and return the state's folder."""

    def train(*phases, end: int):
        lineage = Lineage(make_recipe(*phases, learning_rate=SCHEDULE), training_data.fingerprint)
        options = RunOptions(checkpoint_every=0)
        return train_segment(lineage, training_data, tmp_path, start=0, end=end, options=options)

    return train


def continuation_of(folder, data):
    found = find_continuation(fetch_model(folder), data.fingerprint)
    assert found is not None
    return found


@pytest.mark.parametrize("end", [6, 5, 3, 1])
def test_a_state_of_any_step_knows_the_recipe_that_ends_with_it(state, training_data, end):
    folder = state(CLM, end=end)
    found = find_continuation(fetch_model(folder), training_data.fingerprint)
    if end == 5:  # in the decay: no recipe of whole phases ends there
        assert found is None
        return
    assert found is not None
    assert found.steps == end
    assert Lineage(found.recipe, training_data.fingerprint).identities[-1] == folder.name
    assert found.schedule.peak == 2e-3


def test_a_state_within_a_later_phase(state, training_data):
    folder = state(CLM, {"objective": "mlm", "steps": 6}, end=8)
    found = continuation_of(folder, training_data)
    assert [phase.steps for phase in found.recipe.phases] == [6, 2]


@pytest.mark.parametrize(("end", "skipped"), [(8, (1,)), (10, (1, 8))])
def test_a_continued_run_skips_no_step_after_the_state(
    tmp_path, training_data, make_recipe, end, skipped
):
    recipe = make_recipe({**CLM, "steps": 12}).skipping([1, 8])
    lineage = Lineage(recipe, training_data.fingerprint)
    options = RunOptions(checkpoint_every=0)
    folder = train_segment(lineage, training_data, tmp_path, start=0, end=end, options=options)
    found = continuation_of(folder, training_data)
    assert found.recipe.skip_steps == skipped


def test_other_text_is_no_continuation(state, training_data):
    model = fetch_model(state(CLM, end=6))
    other = dataclasses.replace(training_data.fingerprint, corpus_hash="0" * 64)
    assert find_continuation(model, other) is None


def test_a_recipe_of_another_version_is_no_continuation(state, training_data):
    folder = state(CLM, end=6)
    details = json.loads((folder / "state.json").read_text())
    details["recipe"]["gone"] = True
    (folder / "state.json").write_text(json.dumps(details))
    seal_folder(folder, identity=folder.name)
    assert find_continuation(fetch_model(folder), training_data.fingerprint) is None


def test_training_begins_with_the_model_that_was_planned(state, training_data, make_recipe):
    folder = state(CLM, end=6)
    recipe = make_recipe(CLM, model={"pretrained": str(folder)})
    data = dataclasses.replace(training_data, pretrained=fetch_model(folder))
    first_model(recipe, data)
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b" ")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: wrong size"):
        first_model(recipe, data)


def test_other_models_are_no_continuation(tmp_path, state, training_data):
    folder = tmp_path / "plain"
    shutil.copytree(state(CLM, end=6), folder)
    for name in ("state.json", "manifest.json"):
        (folder / name).unlink()
    assert find_continuation(fetch_model(folder), training_data.fingerprint) is None


def test_a_state_is_copied_into_a_store_whole(tmp_path, state, training_data):
    found = continuation_of(state(CLM, end=6), training_data)
    found.bring_into(tmp_path / "other")
    copied = tmp_path / "other" / "states" / found.identity
    assert is_complete(copied)
    STATE.open(copied).verify()
    found.bring_into(tmp_path / "other")  # it is there


def test_a_damaged_state_is_not_copied(tmp_path, state, training_data):
    found = continuation_of(state(CLM, end=6), training_data)
    weights = found.folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match="wrong size"):
        found.bring_into(tmp_path / "other")
    assert not (tmp_path / "other" / "states" / found.identity).exists()


def test_a_state_whose_run_began_with_a_finished_model(tmp_path, training_data, make_recipe, state):
    base = fetch_model(state(CLM, end=6))
    data = dataclasses.replace(training_data, pretrained=base)
    recipe = make_recipe({"objective": "mlm", "steps": 2}, model={"pretrained": str(base.folder)})
    folder = train_segment(Lineage(recipe, data.fingerprint), data, tmp_path, start=0, end=2)
    found = continuation_of(folder, training_data)
    assert found.recipe == recipe
    found.require(recipe, data.fingerprint)
    changed = dataclasses.replace(data.fingerprint, pretrained="0" * 64)
    with pytest.raises(DataError, match="has changed since"):
        found.require(recipe, changed)


def test_a_state_with_a_phase_on_another_corpus(tmp_path, training_data, make_recipe):
    data = dataclasses.replace(
        training_data, corpora={str(tmp_path / "other"): training_data.heldout}
    )
    recipe = make_recipe(CLM, {**CLM, "corpus": str(tmp_path / "other")})
    folder = train_segment(Lineage(recipe, data.fingerprint), data, tmp_path, start=0, end=12)
    found = continuation_of(folder, training_data)
    assert found.steps == 12
