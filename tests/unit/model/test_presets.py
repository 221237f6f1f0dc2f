"""Sizes as published, and weights that are a function of the seed."""

from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel

from biphasic.model.compute.attention import ATTENTION_NAME
from biphasic.model.head import language_model_head
from biphasic.model.loading.build import architecture_config, new_model
from biphasic.model.shape import PRESETS

SPECIAL_IDS = {"bos": 1, "eos": 2, "pad": 0, "mask": 3}
LLAMA_VOCABULARY = 128_256
# arXiv 2507.00994, Appendix A; without the language-model head.
PUBLISHED = {
    "210m": {"body": 113_265_408, "embedding": 98_500_608},
    "610m": {"body": 460_123_776, "embedding": 147_750_912},
    "1b": {"body": 966_230_208, "embedding": 221_626_368},
}


def config(preset: str = "pico", **changes: Any) -> transformers.EuroBertConfig:
    shared = {"vocab_size": 300, "max_seqlen": 64, "special_ids": SPECIAL_IDS, **changes}
    return architecture_config(PRESETS[preset], **shared)


def count_parameters(config: transformers.EuroBertConfig) -> dict[str, int]:
    """Count parameters on the meta device, without memory: body, embedding, head."""
    with torch.device("meta"):
        model = transformers.EuroBertForMaskedLM(config)
    counts = {name: parameter.numel() for name, parameter in model.named_parameters()}
    embedding = counts["model.embed_tokens.weight"]
    head = counts.get("lm_head.weight", 0)  # absent if it is tied
    return {"body": sum(counts.values()) - embedding - head, "embedding": embedding, "head": head}


@pytest.mark.parametrize("preset", PUBLISHED)
def test_sizes_are_the_published_ones(preset):
    counts = count_parameters(config(preset, vocab_size=LLAMA_VOCABULARY, max_seqlen=2048))
    # The head is not tied: as many parameters again.
    assert counts == {**PUBLISHED[preset], "head": PUBLISHED[preset]["embedding"]}


def test_settings_of_the_study():
    settings = config("210m", max_seqlen=2048)
    assert settings.rope_parameters == {"rope_type": "default", "rope_theta": 10_000.0}
    assert (settings.attention_bias, settings.mlp_bias) == (False, False)
    assert settings.attention_dropout == 0.0
    assert settings.hidden_act == "silu"
    assert settings.max_position_embeddings == 2048
    assert not settings.tie_word_embeddings
    ids = (settings.bos_token_id, settings.eos_token_id, settings.pad_token_id)
    assert (*ids, settings.mask_token_id) == (1, 2, 0, 3)


def weights(model: PreTrainedModel) -> list[torch.Tensor]:
    return list(model.state_dict().values())


def test_weights_depend_on_the_seed_alone():
    with torch.random.fork_rng(devices=[]):
        models = []
        for global_seed, init_seed in [(0, 5), (1, 5), (0, 6)]:
            torch.manual_seed(global_seed)
            models.append(new_model(config(), init_seed=init_seed))
    first, same, other = (weights(model) for model in models)
    assert all(map(torch.equal, first, same))
    differing = [not torch.equal(*pair) for pair in zip(first, other, strict=True)]
    assert sum(differing) >= 2 + 7 * 2  # all but the norms: embedding, head, 7 matrices a layer


def test_global_random_state_is_left_as_it_was():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        before = torch.get_rng_state()
        new_model(config(), init_seed=5)
        assert torch.equal(before, torch.get_rng_state())


def test_new_models_are_ours_and_in_fp32():
    model = new_model(config(), init_seed=0)
    assert model.config._attn_implementation == ATTENTION_NAME
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert language_model_head(model).weight.shape == (300, 64)
    assert language_model_head(model).weight is not model.get_input_embeddings().weight
