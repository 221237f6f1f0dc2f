"""Folders that say which way they see: written for transformers, and read back to the same."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor
from transformers import EuroBertConfig, LlamaConfig, PreTrainedModel

from biphasic.data.packing import pack_sequences
from biphasic.model.compute.forward import hidden_states, padded_states
from biphasic.model.loading.build import load_encoder, load_pretrained
from biphasic.model.loading.configurations import (
    close_again,
    eurobert_config,
    is_open,
    open_both_ways,
)
from families import DISTINCT, FAMILIES, save_family, tiny_config
from rounding import assert_as_exact, exactly

Documents = list[NDArray[np.int64]]
EVERY = pytest.mark.parametrize("family", DISTINCT)


def write_open(source: Path, target: Path) -> Path:
    """Copy a folder to one that says `is_causal: false`, as an export does."""
    config = transformers.AutoConfig.from_pretrained(source)
    open_both_ways(config)
    kind = transformers.AutoModelForMaskedLM if "MaskedLM" in config.architectures[0] else None
    kind = kind or transformers.AutoModelForCausalLM
    kind.from_pretrained(source, config=config).save_pretrained(target)
    return target


@torch.no_grad()
def packed_states(model: PreTrainedModel, documents: Documents) -> list[Tensor]:
    batch = pack_sequences(documents, row_length=24, pad_id=model.config.pad_token_id)
    states = hidden_states(model.eval(), batch, causal=False)
    return [states[start:end] for start, end in batch.spans]


@torch.no_grad()
def padded(model: PreTrainedModel, documents: Documents) -> list[Tensor]:
    states, spans = padded_states(model.eval(), documents, pad_id=model.config.pad_token_id)
    return [states[start:end] for start, end in spans]


class Wanted(NamedTuple):
    """The states of each document in fp32 and in fp64."""

    states: list[Tensor]
    exact: list[Tensor]


def wanted_states(model: PreTrainedModel, documents: Documents) -> Wanted:
    exact = deepcopy(model).double()
    return Wanted(packed_states(model, documents), exactly(lambda: packed_states(exact, documents)))


def assert_same(states: list[Tensor], wanted: Wanted) -> None:
    assert_as_exact(states, *wanted)


@EVERY
def test_an_open_folder_means_the_same_to_everyone(family, tmp_path, token_documents):
    source = save_family(family, tmp_path / "source")
    wanted = wanted_states(load_pretrained(source), token_documents)
    folder = write_open(source, tmp_path / "open")

    plain = transformers.AutoModel.from_pretrained(folder)
    assert_same(padded(plain, token_documents), wanted)
    with torch.no_grad():  # without a mask
        rows = (torch.from_numpy(document)[None] for document in token_documents)
        alone = [plain.eval()(input_ids=row).last_hidden_state[0] for row in rows]
    assert_same(alone, wanted)

    assert_same(padded(load_encoder(folder, batching="padded"), token_documents), wanted)
    assert_same(packed_states(load_encoder(folder), token_documents), wanted)
    again = load_pretrained(folder)
    assert_same(packed_states(again, token_documents), wanted)
    assert not is_open(again.config)
    assert_same(
        packed_states(load_pretrained(write_open(folder, tmp_path / "twice")), token_documents),
        wanted,
    )


@pytest.mark.parametrize("family", ["qwen2", "mistral", "gemma2", "gemma3", "phi3"])
def test_opening_narrows_a_window_once_and_closing_widens_it(family):
    config = tiny_config(family)
    before, window = config.to_dict(), config.sliding_window
    for _ in range(2):
        open_both_ways(config)
        assert (config.is_causal, config.sliding_window) == (False, window - 1)
    for _ in range(2):
        close_again(config)
        assert config.sliding_window == window
        assert not is_open(config)
    assert config.to_dict() == {**before, "use_cache": False}


def test_windows_of_encoders_stay():
    config = tiny_config("modernbert")
    open_both_ways(config)
    assert config.local_attention == 10
    close_again(config)
    assert config.local_attention == 10


@pytest.mark.parametrize("switch", [True, False])
def test_gemma_3_with_its_makers_switch(switch, tmp_path, token_documents):
    """`use_bidirectional_attention` halves the window in the file."""
    source = save_family(
        "gemma3", tmp_path / "source", use_bidirectional_attention=switch, sliding_window=8
    )
    wanted = wanted_states(load_pretrained(source), token_documents)
    folder = write_open(source, tmp_path / "open")
    assert_same(padded(transformers.AutoModel.from_pretrained(folder), token_documents), wanted)
    assert_same(packed_states(load_encoder(folder), token_documents), wanted)
    assert_same(packed_states(load_pretrained(folder), token_documents), wanted)


class TestEuroBert:
    """Llama-shaped weights under EuroBERT's name."""

    @pytest.mark.parametrize(
        ("family", "changes"),
        [
            ("llama", {}),
            ("llama", {"attention_bias": True}),
            ("llama", {"head_dim": 16}),
            ("llama", {"hidden_act": "gelu", "rms_norm_eps": 0.1}),
            ("llama3", {}),
            ("smollm2", {}),
        ],
    )
    def test_same_states_and_logits(self, family, changes, tmp_path, token_documents):
        source = save_family(family, tmp_path / "source", **changes)
        model = load_pretrained(source)
        config = eurobert_config(model.config)
        assert config is not None
        assert config.model_type == "eurobert"
        theirs, report = transformers.EuroBertForMaskedLM.from_pretrained(
            source, config=config, output_loading_info=True
        )
        assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys"))
        wanted = wanted_states(model, token_documents)
        assert_same(padded(theirs, token_documents), wanted)
        if config.tie_word_embeddings:
            assert theirs.lm_head.weight is theirs.model.embed_tokens.weight
        with torch.no_grad():
            tokens = torch.from_numpy(token_documents[0])[None]
            ours = model.lm_head(wanted.states[0])
            logits = theirs.eval()(input_ids=tokens).logits[0]
            exact = exactly(lambda: theirs.double()(input_ids=tokens).logits[0])
        assert_as_exact([ours], [logits], [exact])

    def test_nothing_of_the_configuration_is_lost(self):
        """Every setting that both have is the same, but for those with other defaults."""
        config = tiny_config("llama3", attention_dropout=0.1, initializer_range=0.3)
        config.mask_token_id = 7
        native = eurobert_config(config)
        assert native is not None
        ours, theirs = config.to_dict(), native.to_dict()
        free = {"model_type", "architectures", "transformers_version", "pretraining_tp"}
        for name in (ours.keys() & theirs.keys()) - free:
            assert theirs[name] == ours[name], name
        assert native.rope_parameters is not config.rope_parameters

    @pytest.mark.parametrize(
        "family", [family for family in FAMILIES if FAMILIES[family].config != "LlamaConfig"]
    )
    def test_other_families_are_none(self, family):
        assert eurobert_config(tiny_config(family)) is None

    def test_biases_of_the_feed_forward_layers_are_none(self):
        """EuroBERT has a biased head then, which a Llama has no weights for."""
        assert eurobert_config(tiny_config("llama", mlp_bias=True)) is None

        class Other(LlamaConfig):
            model_type = "other"

        assert eurobert_config(Other()) is None
        assert eurobert_config(EuroBertConfig()) is None
