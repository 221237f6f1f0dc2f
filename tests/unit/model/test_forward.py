"""Packed rows through a model, and longer ones after its configuration is changed."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import PreTrainedModel

from biphasic.data.packing import PackedBatch, pack_sequences
from biphasic.errors import ModelError
from biphasic.model.compute.forward import (
    activation_dtype,
    first_position,
    hidden_states,
    padded_states,
)
from biphasic.model.loading.build import load_pretrained, new_model
from biphasic.model.loading.configurations import check_length, extend_config, extend_context
from biphasic.training.step.optimizer import set_precision
from families import DISTINCT, save_family, tiny_config


@pytest.fixture
def model() -> PreTrainedModel:
    return new_model(tiny_config("llama"), init_seed=0)


def pack(*lengths: int) -> PackedBatch:
    tokens = [np.arange(4, 4 + length) for length in lengths]
    return pack_sequences(tokens, row_length=8, pad_id=0)


def test_positions_restart_and_nothing_is_cached(model):
    """Rotary positions are relative: states alone would not show positions that run on."""
    passed: list[tuple[dict[str, Any], Any]] = []
    model.base_model.register_forward_hook(
        lambda _m, _i, options, output: passed.append((options, output)), with_kwargs=True
    )
    hidden_states(model, pack(5, 3, 6), causal=True)
    ((options, output),) = passed
    assert options["position_ids"].tolist() == [[0, 1, 2, 3, 4, 5, 0, 1], [0, 1, 2, 3, 4, 0, 1, 2]]
    assert output.past_key_values is None


def test_activation_dtype_is_that_of_the_layers(model):
    assert activation_dtype(model) == torch.float32
    set_precision(model, "bf16")
    assert model.get_input_embeddings().weight.dtype == torch.float32
    assert activation_dtype(model) == torch.bfloat16
    assert hidden_states(model, pack(5), causal=True).dtype == torch.bfloat16


def small(kind: type[transformers.PretrainedConfig], **changes: Any) -> PreTrainedModel:
    config = kind(
        vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=12, **changes,
    )  # fmt: skip
    return transformers.AutoModel.from_config(config).eval()


@pytest.mark.parametrize(
    ("kind", "pad_id", "first"),
    [
        (transformers.BertConfig, 0, 0),
        (transformers.RobertaConfig, 1, 2),
        (transformers.XLMRobertaConfig, 1, 2),
        (transformers.CamembertConfig, 1, 2),
        (transformers.RobertaConfig, 5, 6),
        (transformers.LlamaConfig, 0, 0),
    ],
)
def test_positions_of_a_text_begin_where_its_model_has_them(kind, pad_id, first):
    assert first_position(small(kind, pad_token_id=pad_id)) == first


def test_positions_of_every_packed_sequence_begin_there():
    model = new_model(tiny_config("roberta", pad_token_id=1), init_seed=0)
    passed: list[Any] = []
    model.base_model.register_forward_pre_hook(
        lambda _m, _i, options: passed.append(options["position_ids"].tolist()), with_kwargs=True
    )
    hidden_states(model, pack(5, 3, 6), causal=False)
    assert passed == [[[2, 3, 4, 5, 6, 7, 2, 3], [2, 3, 4, 5, 6, 2, 3, 4]]]


def test_padded_rows_hold_one_sequence_each():
    model = small(transformers.BertConfig)
    sequences = [np.arange(4, 4 + length) for length in (3, 7, 1)]
    seen: list[dict[str, Any]] = []
    model.register_forward_pre_hook(lambda _m, _i, options: seen.append(options), with_kwargs=True)
    states, spans = padded_states(model, sequences, pad_id=2)
    (options,) = seen
    assert options["input_ids"].tolist() == [
        [4, 5, 6, 2, 2, 2, 2],
        [4, 5, 6, 7, 8, 9, 10],
        [4, 2, 2, 2, 2, 2, 2],
    ]
    assert options["attention_mask"].sum(1).tolist() == [3, 7, 1]
    assert spans.tolist() == [[0, 3], [7, 14], [14, 15]]
    assert states.shape == (3 * 7, 16)
    alone, _ = padded_states(model, sequences[:1], pad_id=2)
    torch.testing.assert_close(states[:3], alone, atol=1e-5, rtol=0)


ABSOLUTE = ("bert", "roberta", "biogpt")
ROTARY = [family for family in DISTINCT if family not in ABSOLUTE]


def states(model: PreTrainedModel, length: int = 30) -> torch.Tensor:
    batch = pack_sequences([np.arange(length) % 90 + 4], row_length=length, pad_id=0)
    with torch.no_grad():
        return hidden_states(model.eval(), batch, causal=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "theta"), [*((family, 300.0) for family in ROTARY), ("llama", None), ("phi3", None)]
)
def test_equals_a_model_loaded_with_the_changed_configuration(family, theta, tmp_path):
    folder = save_family(family, tmp_path)
    longest = 32 if family == "phi3" else 128  # longrope: not beyond its original length
    live, before = load_pretrained(folder), load_pretrained(folder)
    extend_context(live, max_seqlen=longest, rope_theta=theta)
    live.config.save_pretrained(folder)
    loaded = load_pretrained(folder)
    assert loaded.config.max_position_embeddings == max(longest, 64)
    assert torch.equal(states(live), states(loaded))
    changed = float((states(live) - states(before)).abs().max()) > 0.01
    assert changed == (theta is not None)
    assert all(map(torch.equal, live.parameters(), before.parameters()))


@pytest.mark.parametrize("family", ["gemma3", "modernbert"])
def test_theta_of_layers_with_windows_stays(family):
    config = tiny_config(family)
    windowed = deepcopy(config.rope_parameters["sliding_attention"])
    extend_config(config, first=0, max_seqlen=128, rope_theta=777.0)
    assert config.rope_parameters["sliding_attention"] == windowed
    assert config.rope_parameters["full_attention"]["rope_theta"] == 777.0


def test_positions_are_never_taken_away():
    config = tiny_config("llama")
    extend_config(config, first=0, max_seqlen=16)
    assert config.max_position_embeddings == 64


@pytest.mark.parametrize("family", ABSOLUTE)
def test_absolute_positions_cannot_be_extended(family):
    model = new_model(tiny_config(family), init_seed=0)
    before = model.config.to_dict()
    extend_context(model, max_seqlen=64)
    with pytest.raises(ModelError, match="64 tokens, not for max_seqlen 65"):
        extend_context(model, max_seqlen=65)
    with pytest.raises(ModelError, match=f"'{family}' has no rotary positions"):
        extend_context(model, max_seqlen=32, rope_theta=1e6)
    with pytest.raises(ModelError, match=f"'{family}' has no rotary positions"):
        extend_config(model.config, first=first_position(model), max_seqlen=65)
    assert model.config.to_dict() == before


def test_rows_longer_than_the_positions_are_refused():
    model = new_model(tiny_config("llama"), init_seed=0)
    check_length(model, 64)
    with pytest.raises(ModelError, match="64 tokens, not for max_seqlen 65"):
        check_length(model, 65)


class TestFrequenciesByLength:
    """Longrope and dynamic scaling look at the longest sequence of a batch."""

    def test_longer_rows_are_refused(self):
        model = new_model(tiny_config("phi3"), init_seed=0)
        check_length(model, 32)
        with pytest.raises(ModelError, match=r"32 tokens \(rope type 'longrope'\)"):
            check_length(model, 33)
        with pytest.raises(ModelError, match="set max_seqlen to at most 32"):
            extend_context(model, max_seqlen=128)

    def test_dynamic_scaling_begins_at_the_models_own_limit(self):
        """Its configuration need not state an original length."""
        rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}
        config = tiny_config("smollm2", rope_parameters=rope)
        with pytest.raises(ModelError, match="set max_seqlen to at most 64"):
            extend_config(config, first=0, max_seqlen=128)
        assert config.max_position_embeddings == 64
        extend_config(config, first=0, max_seqlen=64)

    def test_a_longer_neighbour_would_change_a_document(self):
        model = new_model(tiny_config("phi3"), init_seed=0).eval()
        documents = [np.arange(4, 14), np.arange(4, 44)]
        together = pack_sequences(documents, row_length=40, pad_id=0)
        start, end = together.spans[0]
        with torch.no_grad():
            packed = hidden_states(model, together, causal=True)[start:end]
        assert float((packed - states(model, 10)[:10]).abs().max()) > 0.01
