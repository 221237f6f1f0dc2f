"""Every family, exported and read by transformers alone: our hidden states again."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer

from biphasic import export_model
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ModelError
from biphasic.export.hf import causal_config
from biphasic.files import read_json
from biphasic.model.loading.build import load_encoder
from biphasic.model.loading.configurations import is_open, open_both_ways
from biphasic.tasks.encoding import Encoder
from families import DISTINCT, FAMILIES, PADDED_ONLY, record, save_family, tiny_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOLERANCE = 1e-5
"""Absolute; the states are of size 1 to 4."""
LENGTHS = (40, 17, 9, 3)
"""In tokens; windows of the families are 5 or 6."""
NATIVE = {"llama", "llama3", "smollm2"} & {*DISTINCT}
"""Families whose weights become `eurobert`."""
ENCODERS = {"eurobert", "modernbert", "bert", "roberta"}
CAUSAL = ["gpt_neo", "nemotron", "stablelm"]


@pytest.fixture(scope="module")
def exported(
    tokenizer: TextTokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Path, Path]]:
    """Return a small model of a family and its export, each made once."""

    @cache
    def make(family: str) -> tuple[Path, Path]:
        folder = tmp_path_factory.mktemp(family)
        source = save_family(family, folder / "source", tokenizer=tokenizer)
        return source, export_model(source, folder / "out")

    return make


def sequences(tokenizer: TextTokenizer) -> list[np.ndarray]:
    draw = np.random.default_rng(7)
    inner = [draw.integers(4, tokenizer.vocab_size, length - 2) for length in LENGTHS]
    return [np.array([tokenizer.bos_id, *ids, tokenizer.eos_id]) for ids in inner]


def ours(folder: Path, inputs: list[np.ndarray], pad_id: int, *, batching: str) -> list[Tensor]:
    encoder = Encoder(load_encoder(folder, batching=batching).eval(), pad_id)  # type: ignore[arg-type]
    return [encoder.states([each])[0][: len(each)] for each in inputs]


def alone(model: PreTrainedModel, inputs: list[np.ndarray]) -> list[Tensor]:
    return [model(torch.from_numpy(each)[None]).last_hidden_state[0] for each in inputs]


def padded(model: PreTrainedModel, inputs: list[np.ndarray], pad_id: int) -> list[Tensor]:
    longest = max(map(len, inputs))
    ids = torch.full((len(inputs), longest), pad_id)
    mask = torch.zeros_like(ids)
    for row, each in enumerate(inputs):
        ids[row, : len(each)], mask[row, : len(each)] = torch.from_numpy(each), 1
    states = model(input_ids=ids, attention_mask=mask).last_hidden_state
    return [states[row, : len(each)] for row, each in enumerate(inputs)]


def largest(found: list[Tensor], expected: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))


@pytest.mark.usefixtures("one_thread", "unchecked")
class TestFamilies:
    @torch.no_grad()
    @pytest.mark.parametrize("family", [*DISTINCT, *PADDED_ONLY])
    def test_reloaded_gives_our_hidden_states(self, family, exported, tokenizer):
        source, out = exported(family)
        # Frequencies of Phi-3's long context depend on the longest of a batch: no two lengths then.
        inputs = sequences(tokenizer)[: 1 if family == "phi3" else None]
        batching = "padded" if family in PADDED_ONLY else "packed"
        expected = ours(source, inputs, tokenizer.pad_id, batching=batching)

        model = AutoModel.from_pretrained(out).eval()
        by_one = largest(alone(model, inputs), expected)
        by_many = largest(padded(model, inputs, tokenizer.pad_id), expected)
        if family in FAMILIES:
            record(family, "export", max(by_one, by_many))
        assert max(float(states.abs().max()) for states in expected) > 0.5
        assert by_one <= TOLERANCE
        assert by_many <= TOLERANCE

    @torch.no_grad()
    @pytest.mark.parametrize("family", sorted(NATIVE | ENCODERS))
    def test_head_is_kept(self, family, exported, tokenizer):
        """The logits of a decoder's last token see all before it, whichever way it reads."""
        import transformers

        source, out = exported(family)
        ids = torch.from_numpy(sequences(tokenizer)[0])[None]
        kind = json.loads((source / "config.json").read_text())["architectures"][0]
        # The first layer alone would do for a decoder; one layer reads alike in both directions.
        original = getattr(transformers, kind).from_pretrained(source, num_hidden_layers=1).eval()
        exported = AutoModelForMaskedLM.from_pretrained(out, num_hidden_layers=1).eval()
        assert torch.equal(
            exported.get_output_embeddings().weight, original.get_output_embeddings().weight
        )
        difference = exported(ids).logits[0, -1] - original(ids).logits[0, -1]
        assert float(difference.abs().max()) <= TOLERANCE

    @pytest.mark.parametrize("family", DISTINCT)
    def test_config_is_bidirectional(self, family, exported):
        _, out = exported(family)
        config = json.loads((out / "config.json").read_text())
        card = (out / "README.md").read_text()
        if family in NATIVE:
            assert config["model_type"] == "eurobert"
        if family in NATIVE | ENCODERS:
            assert "is_causal" not in config
            assert "Needs transformers 5.2" not in card
        else:
            assert config["is_causal"] is False
            assert "Needs transformers 5.2" in card
        assert not (out / "generation_config.json").exists()

    @pytest.mark.parametrize("family", ["qwen3", "llama3", "mistral"])
    def test_older_releases_find_rotary_frequencies_where_they_look(self, family, exported):
        config = json.loads((exported(family)[1] / "config.json").read_text())
        rope = dict(config["rope_parameters"])
        assert config["rope_theta"] == rope.pop("rope_theta")
        assert config.get("rope_scaling", {"rope_type": "default"}) == rope

    @pytest.mark.parametrize(
        ("family", "keys"),
        [
            ("gemma3", ("rope_theta", "rope_local_base_freq")),
            ("modernbert", ("global_rope_theta", "local_rope_theta")),
            ("modernbert-decoder", ("global_rope_theta", "local_rope_theta")),
        ],
    )
    def test_older_releases_find_frequencies_of_each_kind_of_layer(self, family, keys, exported):
        out = exported(family)[1]
        config = json.loads((out / "config.json").read_text())
        rope = config["rope_parameters"]
        bases = [rope[kind]["rope_theta"] for kind in ("full_attention", "sliding_attention")]
        assert [config[key] for key in keys] == bases
        assert len(set(bases)) == 2
        assert AutoConfig.from_pretrained(out).rope_parameters == rope

    def test_a_head_of_its_own_is_not_called_tied(self, make_family, tmp_path):
        source = make_family("mistral")  # its head is its own
        config = json.loads((source / "config.json").read_text())
        (source / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
        out = export_model(source, tmp_path / "out")
        assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is False
        head = load_file(out / "model.safetensors")["lm_head.weight"]
        assert torch.equal(head, load_file(source / "model.safetensors")["lm_head.weight"])
        tied = export_model(make_family("qwen3"), tmp_path / "tied")
        assert json.loads((tied / "config.json").read_text())["tie_word_embeddings"] is True

    def test_config_from_left_to_right(self, tokenizer):
        """A decoder's own, and Llama's for our presets; encoders have none."""
        eurobert = causal_config(tiny_config("eurobert"), tokenizer)
        assert (eurobert.model_type, eurobert.rope_parameters) == (
            "llama", tiny_config("eurobert").rope_parameters
        )  # fmt: skip
        opened = tiny_config("mistral")
        window = opened.sliding_window
        open_both_ways(opened)
        again = causal_config(opened, tokenizer)
        assert not is_open(again)
        assert again.sliding_window == window
        with pytest.raises(ModelError, match="'bert' "):
            causal_config(tiny_config("bert"), tokenizer)

    @torch.no_grad()
    @pytest.mark.parametrize("family", ["gemma3", "mistral", "llama"])
    def test_exported_again_is_the_same(self, family, make_family, tokenizer, tmp_path):
        """Windows are not narrowed twice; and we read an export as what it was made from."""
        source = make_family(family)
        once = export_model(source, tmp_path / "once")
        twice = export_model(once, tmp_path / "twice")
        assert (once / "config.json").read_text() == (twice / "config.json").read_text()
        inputs = sequences(tokenizer)
        expected = ours(source, inputs, tokenizer.pad_id, batching="packed")
        found = ours(twice, inputs, tokenizer.pad_id, batching="packed")
        assert largest(found, expected) <= TOLERANCE

    @pytest.mark.parametrize("family", CAUSAL)
    def test_refused_by_layer(self, family, make_family, tmp_path):
        with pytest.raises(ModelError, match=r"\b(layers?|h)[. ]\d"):
            export_model(make_family(family), tmp_path / "out")
        assert not (tmp_path / "out").exists()
        assert not list(tmp_path.glob(".partial-*"))

    def test_tokenizer_gives_the_ids_of_training(self, exported, tokenizer):
        _, out = exported("qwen3")
        theirs = AutoTokenizer.from_pretrained(out)
        text = "the array of rows"
        expected = [tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id]
        assert theirs(text)["input_ids"] == expected
        assert theirs.model_max_length == 64


@pytest.mark.usefixtures("unchecked")
def test_models_that_count_positions_by_padding_keep_their_padding(
    make_family, tokenizer, tmp_path
):
    pads = {}
    for family in ("roberta", "bert"):
        model = make_family(family, pad_token_id=tokenizer.pad_id + 1)
        out = export_model(model, tmp_path / f"{family}-out")
        pads[family] = read_json(out / "config.json")["pad_token_id"]
    assert pads == {"roberta": tokenizer.pad_id + 1, "bert": tokenizer.pad_id}
