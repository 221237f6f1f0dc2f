"""Held-out loss of both objectives."""

import math

import pytest
import torch

from biphasic.data.rows import BatchShape, RowPlan, RowReader
from biphasic.errors import DataError, TrainingError
from biphasic.objectives.clm import Clm
from biphasic.objectives.masking import Mlm
from biphasic.training import heldout as module
from biphasic.training.heldout import HeldoutLoss
from biphasic.training.lineage import TrainingData
from biphasic.training.run import first_model
from biphasic.training.step.input import summed_loss


def sample(data: TrainingData, *, max_seqlen: int = 32, rows_per_batch: int = 4) -> HeldoutLoss:
    return HeldoutLoss(data, max_seqlen=max_seqlen, rows_per_batch=rows_per_batch)


@pytest.fixture(autouse=True)
def _two_batches(monkeypatch):
    monkeypatch.setattr(module, "HELDOUT_TOKENS", 256)


@pytest.fixture
def model(training_data, make_recipe):
    return first_model(make_recipe(), training_data)


def test_mean_is_over_tokens_not_batches(training_data, model):
    # Batches of unlike sizes: a mean of means would differ.
    data = training_data
    reader = RowReader(
        data.heldout,
        RowPlan(data.heldout.lengths, [BatchShape(32, 4, 2)], data_seed=module.HELDOUT_SEED),
        data.tokenizer.special_ids,
    )
    objective = Clm(objective="clm")
    total = count = 0.0
    with torch.inference_mode():
        for step in range(2):
            batch = reader.batch(step)
            [supervision] = objective.supervise(batch, data.vocabulary, mask_seed=0)
            total += float(summed_loss(model, supervision))
            count += len(supervision.labels)
    assert sample(data).evaluate(model)["clm"] == pytest.approx(total / count, rel=1e-6)


def test_one_objective_alone_has_the_same_loss(training_data, model):
    heldout, said = sample(training_data), list[str]()
    both = heldout.evaluate(model)
    assert heldout.evaluate(model, objectives=("mlm",), report=said.append) == {"mlm": both["mlm"]}
    count = len(said)
    assert said == [f"held-out MLM loss, batch {n} of {count}" for n in range(1, count + 1)]
    assert count > 1


def test_the_bound_of_diffusion_is_recorded_from_the_phase_that_trains_it(make_recipe):
    diffusion = {"objective": "diffusion", "steps": 2}
    mixed = {
        "objective": "mix",
        "steps": 1,
        "objectives": [{"objective": "clm"}, {"objective": "diffusion"}],
        "shares": [0.5, 0.5],
    }
    for last in (diffusion, mixed):
        recipe = make_recipe({"objective": "clm", "steps": 2}, last)
        assert not module.own_measures(recipe, end=2)
        assert set(module.own_measures(recipe, end=3)) == {"diffusion"}
    assert not module.own_measures(make_recipe({"objective": "mlm", "steps": 2}), end=2)


def test_an_objective_of_a_file_adds_a_measure(make_recipe, training_data, model, tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "from biphasic.objectives.masking import Mlm\n"
        "class Own(Mlm):\n"
        "    @property\n"
        "    def heldout_measures(self):\n"
        "        low = Mlm(objective='mlm', mlm_probability=0.1)\n"
        "        return {'mlm10': (low, 2), 'mlm': (low, 1)}\n"
    )
    recipe = make_recipe({"objective": f"{file}:Own", "steps": 2})
    own = module.own_measures(recipe, end=2)
    found = sample(training_data).evaluate(model, own=own)
    assert list(found) == ["clm", "mlm", "mlm10"]
    assert found == {**sample(training_data).evaluate(model), "mlm10": found["mlm10"]}


def test_a_measure_without_labels_is_refused(training_data, model):
    rare = Mlm(objective="mlm", mlm_probability=1e-9)
    with pytest.raises(DataError, match=r"held-out RARE loss has no label in .* tokens; hold out"):
        sample(training_data).evaluate(model, objectives=(), own={"rare": (rare, 2)})


def test_evaluation_changes_nothing(training_data, model):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state, was_training = torch.random.get_rng_state(), model.training
    sample(training_data).evaluate(model)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert model.training == was_training
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_sample_is_at_most_one_epoch(training_data, monkeypatch):
    monkeypatch.setattr(module, "HELDOUT_TOKENS", 20_000)
    heldout = sample(training_data)
    pieces = [piece for batch in heldout._batches for piece in batch.pieces]
    assert {piece.epoch for piece in pieces} == {0}
    assert len(pieces) > 1


@pytest.mark.parametrize("every", [0, 2])
def test_a_held_out_loss_that_is_not_finite_stops_the_run(
    train, make_recipe, tmp_path, monkeypatch, every
):
    """The last update may blow weights up that its own loss knew nothing of."""
    monkeypatch.setattr(HeldoutLoss, "evaluate", lambda *_, **__: {"clm": 2.0, "mlm": math.nan})
    recipe = make_recipe({"objective": "clm", "steps": 3})
    message = rf"step {every - 1 if every else 2}: the held-out loss after it is not finite; lower"
    with pytest.raises(TrainingError, match=message):
        train(recipe, options={"heldout_every": every})
    assert not (tmp_path / "states").exists()
