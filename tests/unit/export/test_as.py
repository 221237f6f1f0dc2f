"""Exports in the form that an engine needs: what is written or refused, what the card says."""

from __future__ import annotations

import json
import runpy
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from export_states import LEDGER, RECIPE, write_state
from safetensors.torch import load_file
from torch.testing import assert_close

import biphasic
from biphasic import adapt, encode, export_model
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ConfigError, ModelError
from biphasic.export import ExportSettings
from biphasic.export.card import engines_tried
from biphasic.export.hf import open_source, write_model
from refusals import refusals, refused
from warm import forking

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(__file__).parents[3]
ENGINES = Path(biphasic.__file__).parent / "export" / "engines.json"
TEXTS = ["a", "the rows of an array", "each value was read in order " * 9]
BOTH_WAYS = {"is_causal": False, "use_bidirectional_attention": True}
ROPE = {"rope_theta": 10000.0, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
OWN_CODE = {
    "AutoConfig": "bidirectional_llama.BidirectionalLlamaConfig",
    "AutoModel": "bidirectional_llama.BidirectionalLlamaModel",
}
# What `config.json` holds; None: no such key.
CONFIGS: dict[str, dict[str, Any]] = {
    "eurobert": {"model_type": "eurobert", "architectures": ["EuroBertForMaskedLM"], **ROPE,
                 **dict.fromkeys(BOTH_WAYS), "auto_map": None},
    "llama": {"model_type": "llama", "architectures": ["LlamaModel"], **ROPE, **BOTH_WAYS,
              "auto_map": None},
    "own": {"model_type": "biphasic_llama", "architectures": ["BidirectionalLlamaModel"], **ROPE,
            **BOTH_WAYS, "auto_map": OWN_CODE},
}  # fmt: skip


@pytest.fixture(scope="module")
def made(
    tokenizer: TextTokenizer, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Path]]:
    """A state, and its exports by form, checked as for users."""
    folder = tmp_path_factory.mktemp("forms")
    state = write_state(folder / "store", tokenizer)
    with forking():
        exports = {
            as_: export_model(state, folder / as_, format="sentence-transformers", as_=as_)
            for as_ in CONFIGS
        }
    return state, exports


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def names(as_: str, *is_graph: bool) -> set[str]:
    """Return the engines that were tried with graphs of a form, with its weights, or with both."""
    return {
        f"{engine['name']} {engine['version']}"
        for engine in json.loads(ENGINES.read_text())
        if as_ in engine["outcomes"] and engine["is_graph"] in is_graph
    }


@pytest.mark.parametrize("as_", CONFIGS)
class TestForm:
    def test_configuration(self, made, as_):
        config = config_of(made[1][as_])
        assert {name: config.get(name) for name in CONFIGS[as_]} == CONFIGS[as_]

    def test_pooling_is_where_engines_look(self, made, as_):
        folder = made[1][as_]
        pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
        assert pooling["pooling_mode_mean_tokens"]
        assert (
            json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"] == 64
        )
        assert (folder / "config_sentence_transformers.json").is_file()
        assert (folder / "bidirectional_llama.py").exists() == (as_ == "own")

    def test_weights_are_those_of_the_state(self, made, as_):
        """A body alone has names without a prefix, as llama.cpp's converter expects of it."""
        stored, weights = load_file(made[0] / "model.safetensors"), {}
        for name, tensor in load_file(made[1][as_] / "model.safetensors").items():
            weights[name if as_ == "eurobert" else f"model.{name}"] = tensor
        body = {name for name in stored if name.startswith("model.")}
        assert weights.keys() == (stored.keys() if as_ == "eurobert" else body)
        assert all(torch.equal(weights[name], stored[name]) for name in weights)

    def test_reloaded_by_sentence_transformers(self, made, as_, monkeypatch, tmp_path):
        from sentence_transformers import SentenceTransformer

        monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", tmp_path)
        ours = torch.from_numpy(encode(made[0], TEXTS, long_texts="truncate").vectors)
        folder = str(made[1][as_])
        model = SentenceTransformer(folder, device="cpu", trust_remote_code=as_ == "own")
        for size in (1, 3):
            theirs = model.encode(TEXTS, batch_size=size, convert_to_tensor=True)
            assert_close(theirs, ours, atol=1e-5, rtol=0)

    def test_read_again_by_us(self, made, as_):
        again = torch.from_numpy(encode(made[1][as_], TEXTS, long_texts="truncate").vectors)
        assert_close(
            again,
            torch.from_numpy(encode(made[0], TEXTS, long_texts="truncate").vectors),
            atol=1e-6,
            rtol=0,
        )

    def test_card(self, made, as_):
        card = (made[1][as_] / "README.md").read_text()
        said = {
            "## Engines": True,
            "An engine that ignores both runs the model causally": as_ == "llama",
            "## Needs transformers 5.2 or newer": as_ == "llama",
            f"tokenizer = AutoTokenizer.from_pretrained('OWNER/{as_}', trust": as_ == "own",
            f"model = AutoModel.from_pretrained('OWNER/{as_}', trust": as_ == "own",
            "custom_code": as_ == "own",
            "AutoModelForSequenceClassification": as_ != "own",
        }
        assert {words: words in card for words in said} == said

    def test_card_names_the_engines_that_were_tried(self, made, as_):
        listed = (made[1][as_] / "README.md").read_text().partition("## Engines")[2]
        listed = listed.partition("\n\nOther engines")[0]
        assert {name for name in names(as_, False, True) if name in listed} == names(as_, False)


def test_engines_of_graphs_are_apart():
    for is_graph in (False, True):
        tried = engines_tried("llama", is_graph=is_graph)
        assert set(chain(*tried.values())) == names("llama", is_graph)
    assert engines_tried("auto", is_graph=False) == {}


def test_the_page_has_the_record_of_engines():
    table = runpy.run_path(str(ROOT / "tests" / "engines" / "run.py"))["table"]
    rows = list(table(json.loads(ENGINES.read_text())))
    assert "\n".join(rows) in (ROOT / "docs" / "export.md").read_text("utf-8")


def test_an_engine_that_is_not_installed_is_a_row_without_numbers():
    run = runpy.run_path(str(ROOT / "tests" / "engines" / "run.py"))
    trial = run["Trial"](ROOT, [], None, None)
    for engine in run["ENGINES"]:
        row = trial.row(engine, "not installed: no space left")
        assert {outcome["message"] for outcome in row["outcomes"].values()} == {
            "not installed: no space left"
        }
        [line] = [*run["table"]([row])][2:]
        assert line.count("untested") == len(engine.forms)


@pytest.mark.usefixtures("unchecked")
def test_scaled_rotary_positions_have_old_and_new_keys(make_family, tmp_path):
    config = config_of(export_model(make_family("llama3"), tmp_path / "out", as_="llama"))
    rope = config["rope_parameters"]
    assert rope["rope_type"] == "llama3"
    assert config["rope_theta"] == rope["rope_theta"]
    assert config["rope_scaling"] == {key: rope[key] for key in rope if key != "rope_theta"}


def test_a_class_of_its_own_with_scaled_rotary_positions_is_loaded(make_family, tmp_path):
    """Without the class, transformers reads no tokenizer beside such a configuration."""
    with forking():
        out = export_model(make_family("llama3"), tmp_path / "out", as_="own")
    assert config_of(out)["rope_scaling"]["rope_type"] == "llama3"


@pytest.mark.usefixtures("unchecked")
def test_a_decoder_of_llamas_shape_stays_one(make_state, tmp_path):
    """Of a state that reads from left to right, nothing says that it reads both ways."""
    out = export_model(
        make_state(**CAUSAL), tmp_path / "out", format="sentence-transformers", as_="llama"
    )
    config = config_of(out)
    assert config["architectures"] == ["LlamaModel"]
    assert not BOTH_WAYS.keys() & config.keys()
    assert "## Engines" not in (out / "README.md").read_text()  # tried with encoders


@pytest.mark.usefixtures("unchecked")
def test_the_form_is_part_of_the_identity(state, tmp_path, capsys):
    out = export_model(state, tmp_path / "out", as_="llama")
    export_model(state, out, as_="llama")
    assert "nothing to do" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="made from another model, text or settings"):
        export_model(state, out)
    assert "as" not in ExportSettings().inputs("a")  # as before there were forms


PAIRS = {"objective": "contrastive", "pairs": "/nowhere", "steps": 5, "attention": "causal"}
CAUSAL: dict[str, Any] = {
    "recipe": {**RECIPE, "phases": [RECIPE["phases"][0], PAIRS]},
    "ledger": [LEDGER[0], {**LEDGER[1], "objective": "contrastive"}],
}
VECTORS = {"format": "sentence-transformers"}


# A model and what differs in it, or the record of a state; then the options.
@refusals(
    {
        "unknown": (
            (None, {}, {"as_": "lama"}), ConfigError, "as: unknown value 'lama'; give auto,",
        ),
        "another shape": (
            ("qwen3", {}, {"as_": "llama"}), ModelError, "qwen3: as: llama has the weights of a",
            "type 'qwen3' has others; use --as auto",
        ),
        "an encoder": (("bert", {}, {"as_": "own"}), ModelError, "type 'bert'", "use --as auto"),
        "no classes": (
            ("qwen3", {}, {"as_": "eurobert"}), ModelError, "as: eurobert", "use --as auto",
        ),
        "biases": (
            ("llama", {"mlp_bias": True}, {"as_": "eurobert"}), ModelError, "no biases",
            "use --as auto or llama",
        ),
        "biases of an encoder": (
            ("eurobert", {"mlp_bias": True}, {"as_": "llama"}), ModelError, "llama has no biases",
            "use --as auto or eurobert",
        ),
        "left to right": (
            (None, CAUSAL, {"as_": "eurobert", **VECTORS}), ConfigError, "from left to right",
            "eurobert reads in both", "use --as auto or llama, or --format hf",
        ),
        "code for a graph": (
            (None, {}, {"as_": "own", "format": "onnx"}), ConfigError, "own is code for torch",
            "use --as llama",
        ),
    }
)  # fmt: skip
def test_refused_before_anything_is_written(make_family, make_state, tmp_path, given, error, parts):
    family, changes, options = given
    model = make_family(family, **changes) if family else make_state(**changes)
    before = set(tmp_path.iterdir())
    refused(error, parts, export_model, model, tmp_path / "out", **options)
    assert set(tmp_path.iterdir()) == before


def test_a_causal_encoder_with_biases_keeps_those_of_its_layers(make_family, tmp_path):
    """It is written as a Llama, whose head has none: the head is left out, no part of it."""
    source, out = open_source(make_family("eurobert", mlp_bias=True)), tmp_path / "out"
    options = {"probe": [3, 4, 5], "with_head": True, "causal": True}
    written = write_model(source, out, ExportSettings(), **options)
    assert (written.architecture, written.logits) == ("LlamaModel", None)
    stored, kept = (
        load_file(out / "model.safetensors"),
        load_file(source.folder / "model.safetensors"),
    )
    assert {f"model.{name}" for name in stored} == {n for n in kept if not n.startswith("lm_head")}
    for name, tensor in stored.items():
        assert torch.equal(tensor, kept[f"model.{name}"])


def test_adapt_refuses_before_it_trains(make_family, tmp_path):
    model, root = make_family("qwen3"), tmp_path / "root"
    options = {"corpus": "builtin:pydocs", "root": root, "as_": "llama"}
    refused(ModelError, ("qwen3: as: llama",), adapt, model, tmp_path / "out", **options)
    assert not root.exists()
    assert not (tmp_path / "out").exists()
