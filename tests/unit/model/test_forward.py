"""Packed rows through a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import PreTrainedModel

from biphasic.data.packing import PackedBatch, pack_sequences
from biphasic.model.build import new_model
from biphasic.model.forward import activation_dtype, hidden_states
from biphasic.training.optimizer import set_precision


@pytest.fixture
def model() -> PreTrainedModel:
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, initializer_range=0.2,
    )  # fmt: skip
    return new_model(config, init_seed=0)


def pack(*lengths: int) -> PackedBatch:
    tokens = [np.arange(4, 4 + length) for length in lengths]
    return pack_sequences(tokens, row_length=8, pad_id=0)


def test_states_come_row_by_row(model: PreTrainedModel) -> None:
    states = hidden_states(model, pack(8, 7), causal=True)
    assert states.shape == (2 * 8, 16)
    alone = hidden_states(model, pack(7), causal=True)
    torch.testing.assert_close(states[8:15], alone[:7], atol=1e-5, rtol=0)


def test_positions_restart_and_nothing_is_cached(model: PreTrainedModel) -> None:
    """Rotary positions are relative: states alone would not show positions that run on."""
    passed: list[tuple[dict[str, Any], Any]] = []
    model.base_model.register_forward_hook(
        lambda _m, _i, options, output: passed.append((options, output)), with_kwargs=True
    )
    hidden_states(model, pack(5, 3, 6), causal=True)
    ((options, output),) = passed
    assert options["position_ids"].tolist() == [[0, 1, 2, 3, 4, 5, 0, 1], [0, 1, 2, 3, 4, 0, 1, 2]]
    assert output.past_key_values is None


def test_activation_dtype_is_that_of_the_layers(model: PreTrainedModel) -> None:
    assert activation_dtype(model) == torch.float32
    set_precision(model, "bf16")
    assert model.get_input_embeddings().weight.dtype == torch.float32
    assert activation_dtype(model) == torch.bfloat16
    assert hidden_states(model, pack(5), causal=True).dtype == torch.bfloat16
