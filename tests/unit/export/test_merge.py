"""Merged weights, their identity, and the folder as a model."""

import json
import math
import shutil

import pytest
import torch
from export_states import LEDGER, RECIPE
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForCausalLM

from biphasic import adapt, encode, export_model, finetune, merge_models, pretrain
from biphasic.errors import CheckpointError, ConfigError, DataError, ModelError
from biphasic.export.hf import merge_tensors, write_sentence_transformers
from biphasic.model.loading.build import load_encoder
from biphasic.model.loading.hub import fetch_model
from biphasic.tasks.embedding import Choices, embedding_settings
from custom_tasks import jsonl, write_splits
from tiny_use import write_model


@pytest.fixture
def models(tmp_path):
    torch.manual_seed(0)
    first = write_model(tmp_path / "first", "llama")
    torch.manual_seed(1)
    return first, write_model(tmp_path / "second", "llama")


def weights(folder):
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("method", ["linear", "spherical"])
def test_the_ends_are_the_models(models, tmp_path, method):
    for weight, model in zip((0.0, 1.0), models, strict=True):
        out = merge_models(*models, tmp_path / f"at-{weight}", weight=weight, method=method)
        for name, tensor in weights(model).items():
            torch.testing.assert_close(weights(out)[name], tensor)


def test_a_linear_merge_is_a_weighted_mean_and_loads_as_a_model(models, tmp_path):
    out = merge_models(*models, tmp_path / "merged", weight=0.25)
    first, second = map(weights, models)
    for name, tensor in weights(out).items():
        torch.testing.assert_close(tensor, 0.75 * first[name] + 0.25 * second[name])
    assert AutoModelForCausalLM.from_pretrained(out).config.model_type == "llama"
    assert load_encoder(out).config.hidden_size == 32
    assert fetch_model(out).identity not in {fetch_model(each).identity for each in models}


@pytest.mark.parametrize("source", ["llama", "qwen3", "modernbert"])
def test_a_merge_with_a_model_of_a_class_of_its_own_loads_without_its_code(tmp_path, source):
    base = write_model(tmp_path / "base", source)
    own = tmp_path / "own"
    if source == "llama":
        export_model(base, own, as_="own", format="hf")
    else:
        rows = [{"text": f"{label} {n}", "label": label} for n in range(4) for label in "ab"]
        (tmp_path / "task").mkdir()
        write_splits(tmp_path / "task", ".jsonl", jsonl(*rows))
        grid = {"learning_rates": [1e-3], "seeds": [0], "protocol": {"max_steps": 1}}
        finetune(base, f"sc:{tmp_path / 'task'}", own, root=tmp_path, quiet=True, **grid)
    assert bool([*own.glob("*.py")]) == (source != "modernbert")  # whose class transformers has
    merged = AutoModel.from_pretrained(merge_models(own, own, tmp_path / "merged"))
    assert merged.config.model_type == source
    assert "Classification" not in merged.config.architectures[0]  # heads are not merged
    tokens = torch.arange(5, 11)[None]
    ours = load_encoder(own, batching="padded").eval()(tokens).last_hidden_state
    torch.testing.assert_close(merged.eval()(tokens).last_hidden_state, ours)


def test_a_spherical_merge_stays_on_the_arc():
    one, other = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 3.0]])
    merged = merge_tensors({"w": one}, {"w": other}, shares={"w": 1 / 3}, method="spherical")["w"]
    # A third of a right angle.
    expected = torch.tensor([[3 * math.cos(math.pi / 6), 3 * math.sin(math.pi / 6)]])
    torch.testing.assert_close(merged, expected)
    opposite = merge_tensors({"w": one}, {"w": -one}, shares={"w": 0.25}, method="spherical")["w"]
    torch.testing.assert_close(opposite, 0.5 * one)  # no arc is the shortest: linear


def test_rows_that_the_base_lacks_are_kept():
    base, adapted = torch.zeros(2, 3), torch.ones(3, 3)
    merged = merge_tensors({"w": base}, {"w": adapted}, shares={"w": 0.5}, method="linear")["w"]
    assert merged.tolist() == [[0.5] * 3, [0.5] * 3, [1.0] * 3]
    assert adapted.tolist() == [[1.0] * 3] * 3
    for other in ({"w": torch.zeros(4, 3)}, {"w": torch.zeros(2, 4)}, {"v": base}):
        with pytest.raises(ModelError, match="merge models of one architecture"):
            merge_tensors(other, {"w": adapted}, shares={"w": 0.5}, method="linear")


@pytest.mark.parametrize("method", ["linear", "spherical"])
def test_integer_buffers_are_those_of_the_adapted_model_and_scalars_are_merged(method):
    base = {"table": torch.tensor([[1, 2]]), "count": torch.tensor(3), "scale": torch.tensor(1.0)}
    adapted = {
        "table": torch.tensor([[5, 7]]),
        "count": torch.tensor(9),
        "scale": torch.tensor(3.0),
    }
    merged = merge_tensors(base, adapted, shares=dict.fromkeys(base, 0.5), method=method)
    assert {name: tensor.tolist() for name, tensor in merged.items()} == {
        "table": [[5, 7]],
        "count": 9,
        "scale": 2.0,
    }


def test_groups_have_weights_of_their_own(models, tmp_path):
    groups = {"0": 0.0, "embeddings": 1.0, "rest": 0.25}
    out = merge_models(*models, tmp_path / "merged", weight=0.5, groups=groups)
    first, second = map(weights, models)
    shares = {
        "model.layers.0.mlp.up_proj.weight": 0.0,
        "model.layers.1.mlp.up_proj.weight": 0.5,
        "model.embed_tokens.weight": 1.0,
        "model.norm.weight": 0.25,
        "lm_head.weight": 0.25,
    }
    for name, share in shares.items():
        mean = (1 - share) * first[name] + share * second[name]
        torch.testing.assert_close(weights(out)[name], mean)


@pytest.mark.parametrize(
    ("groups", "problem"),
    [
        ({"2": 0.1}, "group '2': the models have no weights of 2"),
        ({"0-5": 0.1}, "group '0-5': the models have no weights of 2"),
        ({"1-0": 0.1}, "group '1-0': give a layer as 3"),
        ({"0-99999999999": 0.1}, "give a layer as 3"),
        ({"0-1": 0.1, "1": 0.2}, r"group '1': model\.layers\.1\.\S+ is in another group, too"),
        ({"last": 0.1}, "group 'last': give a layer as 3, layers as 0-5, embeddings, or rest"),
        ({"0": 1.2}, r"group '0': 1\.2; give 0 to 1"),
    ],
)
def test_a_group_that_cannot_be_is_refused(models, tmp_path, groups, problem):
    with pytest.raises(ConfigError, match=problem):
        merge_models(*models, tmp_path / "merged", groups=groups)


@pytest.mark.parametrize(
    ("file", "change", "problem"),
    [
        ("config.json", ('"intermediate_size": ', '"intermediate_size": 1'), "has the shapes"),
        ("config.json", ('"num_hidden_layers": ', '"num_hidden_layers": 1'), "different weights"),
        ("tokenizer.json", ('"~": ', '"~~~": '), "token '[^']*' has id .* merge models of one"),
    ],
)
def test_models_that_do_not_fit_are_refused_before_their_weights_are_read(
    models, tmp_path, file, change, problem
):
    path = models[1] / file
    path.write_text(path.read_text().replace(*change))
    for model in models:
        (model / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=problem):
        merge_models(*models, tmp_path / "merged")


def test_training_begins_with_a_merged_model_and_knows_it(models, tmp_path, text_file):
    out = merge_models(*models, tmp_path / "merged")
    recipe = {
        "model": {"pretrained": str(out)},
        "max_seqlen": 32,
        "rows_per_step": 2,
        "learning_rate": {"peak": 1e-3},
        "phases": [{"objective": "mlm", "steps": 1}],
    }
    corpus = {"sources": [str(text_file)], "tokenizer": str(out)}
    state = pretrain(recipe, corpus=corpus, root=tmp_path / "root", heldout_every=0)
    ground = json.loads((state / "state.json").read_text())["ground"]
    assert ground["pretrained"] == fetch_model(out).identity
    again = merge_models(*models, tmp_path / "again")
    assert fetch_model(again).identity == fetch_model(out).identity


def test_the_identity_covers_models_weight_and_method(models, tmp_path):
    ways = {
        "a": {},
        "b": {"weight": 0.4},
        "c": {"method": "spherical"},
        "d": {"groups": {"0": 0.4}},
        "again": {},
    }
    records = {
        name: json.loads((merge_models(*models, tmp_path / name, **how) / "merge.json").read_text())
        for name, how in ways.items()
    }
    assert records["a"] == records["again"]
    assert len({record["identity"] for record in records.values()}) == 4
    assert records["b"]["weight"] == 0.4
    assert records["a"]["base"] == fetch_model(models[0]).identity


PAIRS = {"objective": "contrastive", "pairs": "/gone", "steps": 8, "pooling": "last",
         "query_prompt": "Query: "}  # fmt: skip


@pytest.mark.parametrize("attention", ["bidirectional", "causal"])
def test_vectors_are_made_as_by_the_second_model(make_state, tmp_path, attention):
    """A state of pairs, and its export, whose settings another folder would lack."""
    state = make_state(
        recipe={**RECIPE, "phases": [{**PAIRS, "attention": attention}]},
        ledger=[{**LEDGER[1], "phase": 0, "objective": "contrastive"}],
    )
    out = export_model(state, tmp_path / "out", format="sentence-transformers", quiet=True)
    texts = ["the rows of an array", "model"]
    expected = encode(state, texts, prompt="query").vectors
    for second in (state, out):
        merged = merge_models(second, second, tmp_path / f"merged-{second.name}")
        settings = embedding_settings(merged, Choices())
        assert (settings.pooling, settings.causal) == ("last", attention == "causal")
        found = encode(merged, texts, prompt="query").vectors
        torch.testing.assert_close(*map(torch.tensor, (found, expected)), atol=1e-5, rtol=0)


def test_vectors_that_a_merge_cannot_have_are_refused(models, tmp_path):
    write_sentence_transformers(models[1], hidden_size=32, max_seqlen=64)
    modules = models[1] / "modules.json"
    modules.write_text(modules.read_text().replace("models.Pooling", "models.WordWeights"))
    with pytest.raises(ModelError, match="only Transformer, Pooling and Normalize are supported"):
        merge_models(*models, tmp_path / "merged")


def test_the_command(models, tmp_path, cli):
    out = tmp_path / "out"
    assert cli("merge", *models, "--out", out, "--weight", "0.3")[:2] == (0, f"model: {out}\n")
    assert cli("merge", *models, "--out", out)[0] == 2
    parts = tmp_path / "parts"
    code, _, error = cli("merge", *models, "--out", parts, "--group", "0-1=0.1")
    assert (code, json.loads((parts / "merge.json").read_text())["groups"]) == (0, {"0-1": 0.1})
    code, _, error = cli("merge", *models, "--out", tmp_path / "z", "--group", "0-1")
    assert (code, error) == (2, "error: --group 0-1: give GROUP=WEIGHT, as 0-5=0.3\n")
    with pytest.raises(ConfigError, match=r"weight: .*give 0 to 1"):
        merge_models(*models, tmp_path / "x", weight=1.5)
    code, _, error = cli("merge", *models, "--out", tmp_path / "y", "--method", "cubic")
    assert (code, "method: unknown value 'cubic'; give linear or spherical" in error) == (2, True)


def without_manifest(folder):
    (folder / "manifest.json").unlink()


def with_empty_manifest(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "files": {}}))


def with_other_weights(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (with_other_weights, r"model\.safetensors: damaged"),
        (without_manifest, r"incomplete \(no manifest\.json\)"),
        (with_empty_manifest, r"manifest\.json: damaged \(does not list state\.json\)"),
    ],
)
def test_every_command_refuses_a_damaged_state(make_state, tmp_path, harm, message):
    state = make_state()
    copy = shutil.copytree(state, tmp_path / "copy")
    harm(state)
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text("One text. And another one.\n" * 50)
    recipe = {
        "model": {"pretrained": str(state)},
        "phases": [{"objective": "mlm", "steps": 1}],
        "learning_rate": {"peak": 1e-3},
    }
    quiet = {"root": tmp_path / "root", "quiet": True}
    for use in (
        lambda: merge_models(copy, state, out),
        lambda: merge_models(state, copy, out),
        lambda: adapt(state, out, corpus=text, steps=1, **quiet),
        lambda: pretrain(recipe, corpus=text, **quiet),
        lambda: export_model(state, out),
    ):
        with pytest.raises(CheckpointError, match=message):
            use()
    assert not out.exists()
    assert not (tmp_path / "root/states").exists()


def test_a_damaged_export_is_not_merged(make_family, tmp_path):
    decoder = make_family("qwen3")
    out = export_model(decoder, tmp_path / "export", quiet=True)
    with_other_weights(out)
    with pytest.raises(DataError, match=r"model\.safetensors: damaged"):
        merge_models(decoder, out, tmp_path / "merged")


def test_a_repeated_merge_finds_its_own_result(models, tmp_path):
    out = merge_models(*models, tmp_path / "merged", weight=0.5)
    assert merge_models(*models, out, weight=0.5) == out


def test_what_a_killed_merge_left_is_deleted_by_the_next(models, tmp_path):
    left = tmp_path / ".partial-merged-00000000"
    left.mkdir()
    (left / "model.safetensors").touch()
    merge_models(*models, tmp_path / "merged")
    assert not left.exists()
