"""`pretrain` and `evaluate` as calls: on our states and on plain transformers folders."""

import io
import json

import pytest
from rich.console import Console
from transformers import (
    AutoModelForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
)

import biphasic
from biphasic.data.tokenizer import train_tokenizer
from biphasic.errors import ConfigError, DataError, ModelError
from biphasic.study import api
from biphasic.study.api import encoder_identity, evaluate, pretrain

GRID = {"learning_rates": [1e-3], "seeds": [0, 1]}
PROTOCOL = {"max_steps": 2, "batch_size": 4, "max_seqlen": 32}
RECIPE = {
    "model": "pico",
    "max_seqlen": 32,
    "rows_per_step": 2,
    "learning_rate": {"peak": 1e-3},
    "phases": [{"objective": "clm", "steps": 2}, {"objective": "mlm", "steps": 2}],
}


@pytest.fixture
def quiet():
    return Console(file=io.StringIO())


@pytest.fixture
def ready(monkeypatch, prepared):
    """Stand in for the built-in documentation."""
    monkeypatch.setattr(api, "prepare", lambda *_, **__: prepared)


@pytest.fixture
def task(tmp_path, make_task):
    return make_task(tmp_path / "first-word")


@pytest.fixture(params=["bert", "llama"])
def plain_model(request, tmp_path, documents):
    """A folder as transformers writes it, with a tokenizer that has no mask token."""
    shape = {
        "vocab_size": 320,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
    }
    model = (
        BertForMaskedLM(BertConfig(**shape))
        if request.param == "bert"
        else LlamaForCausalLM(LlamaConfig(**shape))
    )
    folder = tmp_path / request.param
    model.save_pretrained(folder)
    train_tokenizer([text for _, text in documents], vocab_size=320).save(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["mask_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_public_names_are_the_calls():
    assert biphasic.pretrain is pretrain
    assert biphasic.evaluate is evaluate
    assert biphasic.run_study is api.run_study
    assert set(biphasic.__all__) <= set(dir(biphasic))
    with pytest.raises(AttributeError, match="pretran"):
        _ = biphasic.pretran


def test_a_pretrained_state_is_found_again_and_evaluated(ready, tmp_path, task, quiet):
    folder = pretrain(RECIPE, root=tmp_path / "root", console=quiet)
    state = json.loads((folder / "state.json").read_text())
    assert (state["step"], [e["objective"] for e in state["ledger"]]) == (4, ["clm", "mlm"])
    assert AutoModelForMaskedLM.from_pretrained(folder).config.hidden_size == 64
    before = (folder / "manifest.json").stat().st_mtime_ns
    assert pretrain(RECIPE, root=tmp_path / "root", console=quiet) == folder
    assert (folder / "manifest.json").stat().st_mtime_ns == before

    found = evaluate(folder, task, **GRID, protocol=PROTOCOL, root=tmp_path / "root", console=quiet)
    assert (found.task, found.metric, found.convention) == ("first-word", "accuracy", "standard")
    assert {result.seed for result in found.results} == {0, 1}
    assert {result.state for result in found.results} == {folder.name}
    tests = [result.test["accuracy"] for result in found.results if result.test]
    assert found.estimate is not None
    assert found.estimate.mean == pytest.approx(sum(tests) / 2)


def test_a_plain_model_is_evaluated_once(plain_model, tmp_path, task, quiet):
    root = tmp_path / "root"
    settings = {**GRID, "protocol": PROTOCOL, "root": root, "console": quiet}
    first = evaluate(plain_model, task, **settings)
    assert len(first.results) == 2
    results = sorted(root.glob("store/finetunes/*/result.json"))
    before = [path.stat().st_mtime_ns for path in results]
    assert evaluate(plain_model, task, **settings) == first
    assert [path.stat().st_mtime_ns for path in results] == before
    evaluate(plain_model, task, **{**settings, "seeds": [0, 1, 2]})
    assert len(list(root.glob("store/finetunes/*/result.json"))) == 3


def test_a_model_is_known_by_its_files(plain_model):
    before = encoder_identity(plain_model)
    assert encoder_identity(plain_model) == before
    weights = plain_model / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert encoder_identity(plain_model) != before


def test_mistakes_are_named(tmp_path, task, plain_model, quiet):
    root = {"root": tmp_path / "root", "console": quiet}
    with pytest.raises(DataError, match="no model here"):
        evaluate(tmp_path / "none", task, **root)
    with pytest.raises(ConfigError, match=r"did you mean 'pydocs-sc'"):
        evaluate(plain_model, "pydoc-sc", **root)
    with pytest.raises(ConfigError, match=r"unknown key 'max_step' \(did you mean 'max_steps'"):
        evaluate(plain_model, task, protocol={"max_step": 1}, **root)
    with pytest.raises(ConfigError, match="seeds"):
        evaluate(plain_model, task, seeds=[-1], **root)
    (plain_model / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ModelError, match="cannot be loaded"):
        evaluate(plain_model, task, **GRID, protocol=PROTOCOL, **root)


def test_a_wrong_recipe_is_named(tmp_path, quiet):
    with pytest.raises(ConfigError, match=r"recipe: unknown key 'phase' \(did you mean 'phases'"):
        pretrain({**RECIPE, "phase": []}, root=tmp_path, console=quiet)


def test_a_schedule_that_does_not_fit_is_refused(ready, tmp_path, quiet):
    schedule = {"peak": 1e-3, "warmup_steps": 3, "decay_steps": 2}
    with pytest.raises(ConfigError, match="exceed the run's 4 steps"):
        pretrain({**RECIPE, "learning_rate": schedule}, root=tmp_path, console=quiet)
