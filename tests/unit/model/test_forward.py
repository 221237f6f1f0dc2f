"""Packed rows through a model."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import PreTrainedModel

from biphasic.data.packing import PackedBatch, pack_sequences
from biphasic.model.compute.forward import (
    activation_dtype,
    first_position,
    hidden_states,
    padded_states,
)
from biphasic.model.loading.build import new_model
from biphasic.training.step.optimizer import set_precision
from families import tiny_config


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
