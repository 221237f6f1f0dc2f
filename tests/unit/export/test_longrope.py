"""Frequencies chosen by length: what transformers computes, in a form that can be traced."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModel, PreTrainedModel

from biphasic.export.write import traceable_longrope
from families import tiny_config

LIMIT = 32
"""Tokens that the short frequencies of the small Phi-3 are for."""


@pytest.fixture(scope="module")
def phi3() -> PreTrainedModel:
    torch.manual_seed(0)
    config = tiny_config("phi3", num_hidden_layers=1, is_causal=False, sliding_window=None)
    return AutoModel.from_config(config).eval()


@torch.no_grad()
@pytest.mark.parametrize("length", [1, LIMIT, LIMIT + 1, 64])
def test_it_computes_the_same(phi3, length):
    input_ids = torch.arange(length)[None] % 90
    expected = phi3(input_ids).last_hidden_state
    with traceable_longrope(phi3):
        assert torch.equal(phi3(input_ids).last_hidden_state, expected)


@torch.no_grad()
def test_short_and_long_differ(phi3):
    """One token more, and the same positions turn differently."""
    with traceable_longrope(phi3):
        short, longer = (
            phi3.rotary_emb(torch.zeros(1, 1), torch.arange(length)[None])[0][0, :LIMIT]
            for length in (LIMIT, LIMIT + 1)
        )
    assert float((short - longer).abs().max()) > 0.1


def test_the_model_is_as_before(phi3):
    before = dict(phi3.named_modules())
    with traceable_longrope(phi3):
        assert dict(phi3.named_modules()).keys() != before.keys()
    after = dict(phi3.named_modules())
    assert after.keys() == before.keys()
    assert all(after[name] is module for name, module in before.items())
