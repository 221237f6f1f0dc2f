"""A model with a longer context is the one that its changed configuration describes."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from biphasic.data.packing import pack_sequences
from biphasic.errors import ModelError
from biphasic.model.compute.forward import first_position, hidden_states
from biphasic.model.loading.build import load_pretrained, new_model
from biphasic.model.loading.configurations import check_length, extend_config, extend_context
from families import DISTINCT, save_family, tiny_config

pytestmark = pytest.mark.slow

ABSOLUTE = ("bert", "roberta", "biogpt")
ROTARY = [family for family in DISTINCT if family not in ABSOLUTE]


def states(model: PreTrainedModel, length: int = 30) -> torch.Tensor:
    batch = pack_sequences([np.arange(length) % 90 + 4], row_length=length, pad_id=0)
    with torch.no_grad():
        return hidden_states(model.eval(), batch, causal=True)


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
