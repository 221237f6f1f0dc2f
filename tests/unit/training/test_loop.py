"""From one state of a recipe to a later one."""

from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoTokenizer

from biphasic.data.rows import RowPlan, RowReader
from biphasic.errors import CheckpointError, ModelError
from biphasic.files import read_json
from biphasic.store import STATE
from biphasic.training import loop, run
from biphasic.training.lineage import Lineage
from biphasic.training.recipe import Recipe
from biphasic.training.step.pending import StepReport
from mini_study import flip
from short_runs import CLM, MLM, metrics


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("stores")


@pytest.fixture
def finished(stores, train, make_recipe) -> Path:
    """The state of CLM then MLM; trained once, never change its files."""
    return train(make_recipe(CLM, MLM), stores)


def test_state_records_where_it_came_from(finished, training_data, make_recipe):
    recipe = make_recipe(CLM, MLM)
    lineage = Lineage(recipe, training_data.fingerprint)
    state = read_json(finished / "state.json")
    assert finished.name == state["identity"] == lineage.identities[6]
    assert STATE.open(finished).verify().manifest["identity"] == lineage.identities[6]
    assert (state["format"], state["step"], state["parent"]) == ("biphasic.state/1", 6, None)
    assert Recipe.model_validate(state["recipe"]) == recipe
    assert state["ground"]["corpus_hash"] == training_data.corpus.content_hash
    assert state["heldout"] == metrics(finished)[-1]["heldout"]
    assert state["environment"]["libraries"]["torch"] == version("torch")
    assert state["seconds"] > 0
    assert not list((finished.parent.parent / "progress").glob("*"))


def test_ledger_and_metrics_count_the_rows_that_were_read(finished, training_data, make_recipe):
    recipe, data = make_recipe(CLM, MLM), training_data
    plan = RowPlan(
        data.corpus.lengths, [placed.batches for placed in recipe.placed_phases], data_seed=0
    )
    reader = RowReader(data.corpus, plan, data.tokenizer.special_ids)
    batches = [reader.batch(step) for step in range(6)]
    ledger = read_json(finished / "state.json")["ledger"]
    assert [entry["objective"] for entry in ledger] == ["clm", "mlm"]
    for entry, own in zip(ledger, (batches[:3], batches[3:]), strict=True):
        assert entry["steps"] == 3
        assert entry["tokens"] == sum(batch.packed.num_tokens for batch in own)
        pieces = [piece for batch in own for piece in batch.pieces]
        assert entry["documents"] == sum(piece.start == 0 for piece in pieces)
    # CLM supervises every token but the last of each piece.
    clm = sum(batch.packed.num_tokens - len(batch.pieces) for batch in batches[:3])
    assert ledger[0]["supervised_tokens"] == clm
    assert 0.25 < ledger[1]["supervised_tokens"] / ledger[1]["tokens"] < 0.5

    lines = [line for line in metrics(finished) if "loss" in line]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["phase"] for line in lines] == [0, 0, 0, 1, 1, 1]
    assert [line["objective"] for line in lines] == ["clm"] * 3 + ["mlm"] * 3
    assert lines[-1]["tokens"] == sum(batch.packed.num_tokens for batch in batches)
    assert sum(line["supervised_tokens"] for line in lines) == sum(
        entry["supervised_tokens"] for entry in ledger
    )


def test_transformers_loads_a_state_as_it_is(finished):
    weights = load_file(finished / "model.safetensors")
    model = AutoModelForMaskedLM.from_pretrained(finished)
    assert type(model).__name__ == "EuroBertForMaskedLM"
    loaded = model.state_dict()
    assert loaded.keys() == weights.keys()
    assert all(torch.equal(loaded[name], weights[name]) for name in weights)
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    tokenizer = AutoTokenizer.from_pretrained(finished)
    assert tokenizer.mask_token_id == model.config.mask_token_id
    ids = tokenizer("the rows", return_tensors="pt", add_special_tokens=False)["input_ids"]
    assert model(ids).logits.shape == (1, ids.shape[1], 320)


def test_all_arms_read_the_same_rows(finished, stores, train, make_recipe):
    half = {"objective": "clm", "steps": 2}
    rest = {"objective": "mlm", "steps": 4, "mlm_probability": 0.2}
    arms = [
        make_recipe({**CLM, "steps": 6}),
        make_recipe({**MLM, "steps": 6}),
        make_recipe(half, rest, precision="fp32", seeds={"mask_seed": 3, "init_seed": 2}),
    ]
    expected = read_json(finished / "state.json")
    for recipe in arms:
        state = read_json(train(recipe, stores) / "state.json")
        assert state["rows_sha256"] == expected["rows_sha256"]
        assert sum(entry["tokens"] for entry in state["ledger"]) == sum(
            entry["tokens"] for entry in expected["ledger"]
        )
    other = make_recipe(CLM, MLM, seeds={"data_seed": 1})
    state = read_json(train(other, stores) / "state.json")
    assert state["rows_sha256"] != expected["rows_sha256"]


def test_cadence_and_views_change_no_number(finished, tmp_path, train, make_recipe):
    reports: list[StepReport] = []
    described: list[str] = []
    options = {
        "checkpoint_every": 2,
        "heldout_every": 1,
        "tensorboard": tmp_path / "tb",
        "report": reports.append,
        "describe": described.append,
    }
    watched = train(make_recipe(CLM, MLM), options=options)
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (watched / name).read_bytes() == (finished / name).read_bytes()
    assert [report.step for report in reports] == [1, 2, 3, 4, 5, 6]
    assert described[0].startswith("held-out CLM loss, batch 1 of ")
    assert described[-1] == "saving the state"
    heldout = [line["step"] for line in metrics(watched) if "heldout" in line]
    assert heldout == [1, 2, 3, 4, 5, 6]
    assert metrics(watched)[-1] == metrics(finished)[-1]
    assert list((tmp_path / "tb").glob("events.*"))


def test_untrained_state(stores, train, training_data, make_recipe):
    folder = train(make_recipe(), stores)
    state = read_json(folder / "state.json")
    assert (state["step"], state["ledger"]) == (0, [])
    assert [set(line) for line in metrics(folder)] == [{"step", "tokens", "heldout"}]
    assert load_file(folder / "optimizer.safetensors") == {}
    # The trunk of every arm: training on from it equals training from nothing.
    alone = train(make_recipe(CLM), stores)
    assert Lineage(make_recipe(CLM), training_data.fingerprint).identities[0] == folder.name
    assert not torch.equal(
        load_file(alone / "model.safetensors")["lm_head.weight"],
        load_file(folder / "model.safetensors")["lm_head.weight"],
    )


def test_a_missing_or_damaged_start_is_named(train, make_recipe):
    recipe = make_recipe(CLM, MLM)
    with pytest.raises(CheckpointError, match="incomplete"):
        train(recipe, start=3)
    trunk = train(recipe, end=3)
    flip(trunk / "optimizer.safetensors")
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors: damaged"):
        train(recipe, start=3)


@pytest.mark.parametrize("refused", [True, False], ids=["first", "second"])
def test_the_contract_of_each_phase_is_probed_before_any_step(
    tmp_path, train, make_recipe, monkeypatch, refused
):
    def refuse(model, *, causal, **_):
        if causal == refused:
            raise ModelError("layer 0: sees what it must not")

    monkeypatch.setattr(run, "check_contract", refuse)
    with pytest.raises(ModelError, match="sees what it must not"):
        train(make_recipe(CLM, MLM))
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("precision", "probes"),
    [("fp32", [("fp32", 0)] * 2), ("bf16", [("fp32", 0)] * 2 + [("bf16", 0)] * 2)],
)
def test_no_probe_can_end_a_run_in_the_middle(train, make_recipe, monkeypatch, precision, probes):
    """Both directions are probed in fp32 and as they are computed; then no step is in between."""
    steps, seen = [], []
    original = run.check_contract

    def check(model, *, causal, **_):
        halved = model.base_model.layers[0].self_attn.o_proj.weight.dtype == torch.bfloat16
        seen.append(("bf16" if halved else "fp32", len(steps)))
        original(model, causal=causal)

    monkeypatch.setattr(run, "check_contract", check)
    train(make_recipe(CLM, MLM, precision=precision), options={"report": steps.append})
    assert len(steps) == 6
    assert seen == probes


def test_loss_is_divided_once_by_the_supervised_tokens(train, make_recipe, monkeypatch):
    sums: list[tuple[float, int]] = []
    original = loop.pass_loss

    def spy(model, given, **options):
        value = original(model, given, **options)
        sums.append((float(value.detach()), len(given.labels)))
        return value

    monkeypatch.setattr(loop, "pass_loss", spy)
    lines = metrics(train(make_recipe(CLM, MLM)))
    losses = [line["loss"] for line in lines if "loss" in line]
    expected = [total / count for total, count in sums]
    assert losses == pytest.approx(expected, rel=1e-6)
