"""Runs that go on from elsewhere, and phases that change more than the objective."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from biphasic import merge_models
from biphasic.data.corpus import Corpus
from biphasic.data.rows import RowPlan, RowReader
from biphasic.errors import ConfigError, ModelError
from biphasic.files import read_json
from biphasic.model.loading.build import load_pretrained
from biphasic.model.loading.hub import fetch_model
from biphasic.training.lineage import TrainingData
from families import SHARED, save_family, with_head
from short_runs import CLM, MLM, Killed, killing
from text_corpus import write_corpus

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unprobed")]

EVERY = {"checkpoint_every": 1}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def moments(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "optimizer.safetensors")


def changed(before: Path, after: Path) -> set[str]:
    old, new = weights(before), weights(after)
    return {name for name in old if not torch.equal(old[name], new[name])}


@pytest.fixture(scope="module")
def other_corpus(tmp_path_factory, documents, tokenizer) -> tuple[Path, Corpus]:
    folder = tmp_path_factory.mktemp("other") / "corpus"
    texts = [(f"other/{name}", " ".join(reversed(text.split()))) for name, text in documents[:20]]
    return folder, write_corpus(folder / "train", texts, tokenizer, provenance={})


@pytest.fixture(scope="module")
def data_with_other(training_data, other_corpus) -> TrainingData:
    folder, corpus = other_corpus
    return dataclasses.replace(training_data, corpora={str(folder): corpus})


def test_frozen_parameters_and_their_moments_stay(train, make_recipe):
    before = train(make_recipe(CLM))
    frozen = {**MLM, "freeze": ["model.embed_tokens.*", "model.layers.0.*"]}
    after = train(make_recipe(CLM, frozen))
    names = set(weights(before))
    expected = {n for n in names if n.startswith(("model.embed_tokens.", "model.layers.0."))}
    assert changed(before, after) == names - expected
    old, new = moments(before), moments(after)
    for name in expected:
        for key in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.equal(old[f"{name}.{key}"], new[f"{name}.{key}"])


def test_the_next_phase_trains_frozen_parameters_again(train, make_recipe):
    frozen = {**CLM, "freeze": ["model.embed_tokens.*"]}
    before = train(make_recipe(frozen))
    after = train(make_recipe(frozen, MLM))
    assert changed(before, after) == set(weights(before))


def test_a_head_may_be_frozen(train, make_recipe):
    start = train(make_recipe())
    after = train(make_recipe({**CLM, "freeze": ["lm_head.*"]}))
    assert changed(start, after) == set(weights(start)) - {"lm_head.weight"}


def test_the_optimizer_is_reset_on_request(train, make_recipe):
    kept = train(make_recipe(CLM, MLM))
    anew = train(make_recipe(CLM, {**MLM, "optimizer_state": "reset"}))
    name = "model.norm.weight.step"
    assert (float(moments(kept)[name]), float(moments(anew)[name])) == (6.0, 3.0)
    assert changed(kept, anew)


def test_a_longer_context_with_other_frequencies(train, make_recipe):
    longer = {**MLM, "max_seqlen": 64, "rows_per_step": 2, "rope_theta": 40_000.0}
    state = train(make_recipe(CLM, longer))
    config = read_json(state / "config.json")
    assert config["max_position_embeddings"] == 64
    assert config["rope_parameters"]["rope_theta"] == 40_000.0
    # The same rows with the old frequencies lead elsewhere.
    slower = {name: value for name, value in longer.items() if name != "rope_theta"}
    assert changed(state, train(make_recipe(CLM, slower)))


def test_each_corpus_is_read_on_where_it_was_left(
    data_with_other, other_corpus, train, make_recipe, monkeypatch
):
    folder, corpus = other_corpus
    read: list[bytes] = []
    original = RowReader.batch

    def spy(reader, step):
        batch = original(reader, step)
        read.append(batch.sha256())
        return batch

    monkeypatch.setattr(RowReader, "batch", spy)
    recipe = make_recipe(CLM, {**MLM, "corpus": str(folder)}, CLM)
    train(recipe, data=data_with_other)
    seen = read[-9:]  # before come the rows of the held-out corpus
    monkeypatch.undo()

    def rows(corpus: Corpus, steps: range) -> list[bytes]:
        plan = RowPlan(
            corpus.lengths,
            [placed.batches for placed in recipe.placed_phases if placed.corpus is None],
            data_seed=0,
        )
        reader = RowReader(corpus, plan, data_with_other.tokenizer.special_ids)
        return [reader.batch(step).sha256() for step in steps]

    own = rows(data_with_other.corpus, range(6))
    assert seen == own[:3] + rows(corpus, range(3)) + own[3:]


@pytest.fixture(scope="module", params=["qwen3", "gemma3", "roberta"])
def pretrained(request, tmp_path_factory, training_data) -> TrainingData:
    """A tiny finished model of some family whose tokenizer has a token more than it has rows."""
    folder = tmp_path_factory.mktemp("pretrained") / request.param
    size = training_data.tokenizer.vocab_size - 1
    save_family(request.param, folder, vocab_size=size)
    return dataclasses.replace(training_data, pretrained=fetch_model(folder))


def test_a_finished_model_is_continued(pretrained, train, make_recipe):
    recipe = make_recipe(MLM, model={"pretrained": "tiny"})
    start = train(recipe, data=pretrained, end=0)
    original = load_file(pretrained.pretrained.folder / "model.safetensors")
    ours = weights(start)
    grown = [name for name in ours if name in original and ours[name].shape != original[name].shape]
    assert grown  # the tables, by the mask token's row
    for name in set(ours) & set(original) - set(grown):
        assert torch.equal(ours[name], original[name])
    for name in grown:
        assert torch.equal(ours[name][:-1], original[name])
        assert torch.allclose(ours[name][-1], original[name].mean(0), atol=1e-6)
    end = train(recipe, data=pretrained)
    lines = (end / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    losses = [json.loads(line).get("loss") for line in lines]
    assert losses[2] < losses[0]
    assert read_json(end / "state.json")["ground"]["pretrained"] == pretrained.pretrained.identity


def test_interrupted_equals_uninterrupted(pretrained, train, make_recipe):
    phases = (
        {**MLM, "freeze": ["*layers.0.*" if "layers" in _names(pretrained) else "*layer.0.*"]},
        {**MLM, "optimizer_state": "reset", "learning_rate": {"peak": 1e-3, "decay_steps": 1}},
    )
    recipe = make_recipe(*phases, model={"pretrained": "tiny"}, precision="bf16")
    whole = train(recipe, "whole", data=pretrained)
    for step in (1, 3, 4):
        killed = {**EVERY, "report": killing(step)}
        with pytest.raises(Killed):
            train(recipe, f"killed-at-{step}", data=pretrained, options=killed)
        resumed = train(recipe, f"killed-at-{step}", data=pretrained)
        assert not changed(whole, resumed)
        for name in ("optimizer.safetensors", "config.json"):
            assert (whole / name).read_bytes() == (resumed / name).read_bytes()


def test_buffers_that_a_family_saves_with_its_weights_are_kept(
    tmp_path, training_data, train, make_recipe, tokenizer
):
    """Biases of routers choose experts; no training changes them."""
    settings = {**SHARED, "vocab_size": tokenizer.vocab_size, "num_hidden_layers": 2}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    config = transformers.Glm4MoeConfig(
        **settings, **experts, num_key_value_heads=2, head_dim=8, first_k_dense_replace=1
    )
    model, bias = with_head(config), "model.layers.1.mlp.gate.e_score_correction_bias"
    model.get_buffer(bias).copy_(torch.tensor([0.5, -0.5, 0.25, 0.0]))
    model.save_pretrained(tmp_path / "model")
    data = dataclasses.replace(training_data, pretrained=fetch_model(tmp_path / "model"))
    recipe = make_recipe(MLM, MLM, model={"pretrained": "tiny"})
    whole = train(recipe, "whole", data=data)
    torch.testing.assert_close(weights(whole)[bias], model.get_buffer(bias))
    with pytest.raises(Killed):
        train(recipe, "killed", data=data, options={**EVERY, "report": killing(2)})
    assert not changed(whole, train(recipe, "killed", data=data))
    load_pretrained(whole)
    merged = merge_models(tmp_path / "model", whole, tmp_path / "merged")
    torch.testing.assert_close(weights(merged)[bias], model.get_buffer(bias))


def _names(data: TrainingData) -> str:
    return " ".join(load_file(data.pretrained.folder / "model.safetensors"))


@pytest.mark.parametrize(
    ("family", "problem"),
    [("roberta", "no rotary positions"), ("phi3", "frequencies of the whole batch")],
)
def test_positions_that_cannot_grow_are_refused_before_any_step(
    family, problem, tmp_path, training_data, train, make_recipe, tokenizer
):
    folder = save_family(family, tmp_path / "model", vocab_size=tokenizer.vocab_size)
    data = dataclasses.replace(training_data, pretrained=fetch_model(folder))
    recipe = make_recipe(MLM, {**MLM, "max_seqlen": 128}, model={"pretrained": "tiny"})
    with pytest.raises(ModelError, match=problem):
        train(recipe, "store", data=data, options=EVERY)
    assert not (tmp_path / "store" / "progress").exists()


def test_a_copy_of_a_corpus_is_read_on_where_the_corpus_was_left(
    tmp_path, training_data, train, make_recipe
):
    """Identities know content alone, so states that share one must have read the same rows."""
    copy = tmp_path / "copy"
    data = dataclasses.replace(training_data, corpora={str(copy): training_data.corpus})
    whole = train(make_recipe(CLM, MLM), "one")
    parts = train(make_recipe(CLM, {**MLM, "corpus": str(copy)}), "other", data=data)
    assert parts.name == whole.name
    assert weights(parts).keys() == weights(whole).keys()
    assert not changed(parts, whole)


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        ([{**CLM, "freeze": ["model.layer.0.*"]}], "no parameter's name matches"),
        ([CLM, {**MLM, "freeze": ["model.layer.0.*"]}], r"phases\.1\.freeze: no parameter's name"),
        ([CLM, {**MLM, "freeze": ["*"]}], r"phases\.1\.freeze: .* nothing would train"),
    ],
)
def test_what_cannot_be_frozen_is_refused_before_any_step(
    tmp_path, train, make_recipe, phases, message
):
    recipe = make_recipe(*phases)
    with pytest.raises(ConfigError, match=message):
        train(recipe, options=EVERY)
    assert not (tmp_path / "states").exists()
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_model_that_breaks_a_later_phase_is_refused_before_the_first(
    tmp_path, training_data, train, make_recipe, tokenizer, monkeypatch
):
    def refuse(model, *, causal, **_):
        if not causal:
            raise ModelError("layer 1: stays causal")

    monkeypatch.setattr("biphasic.training.run.check_contract", refuse)
    folder = save_family("qwen3", tmp_path / "model", vocab_size=tokenizer.vocab_size)
    data = dataclasses.replace(training_data, pretrained=fetch_model(folder))
    with pytest.raises(ModelError, match="stays causal"):
        train(
            make_recipe(CLM, MLM, model={"pretrained": "tiny"}), "store", data=data, options=EVERY
        )
    assert not (tmp_path / "store" / "progress").exists()
