"""Sizes as published, weights that are a function of the seed, and counts of operations."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from biphasic.data.packing import pack_sequences
from biphasic.model.compute.attention import ATTENTION_NAME
from biphasic.model.compute.forward import hidden_states
from biphasic.model.head import language_model_head
from biphasic.model.loading.build import architecture_config, new_model
from biphasic.model.loading.configurations import config_shape, model_shape
from biphasic.model.shape import PRESETS, ModelShape, architecture_shape
from biphasic.objectives.supervision import Supervision
from biphasic.training.step.input import summed_loss
from families import FAMILIES, replaced_attention, tiny_config

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


EVERY = pytest.mark.parametrize("family", FAMILIES)
CAUSAL = pytest.mark.parametrize("causal", [True, False])


@pytest.fixture
def calls() -> Iterator[list[tuple[int, int | None]]]:
    """Record width and reach of each call of our attention."""
    recorded: list[tuple[int, int | None]] = []

    def record(ours: Any, module: object, query: Tensor, *states: Any, **options: Any) -> Any:
        window = options.get("sliding_window")
        reach = None if window is None else window - 1
        recorded.append((query.shape[1] * query.shape[3], reach))
        return ours(module, query, *states, **options)

    with replaced_attention(record):
        yield recorded


@EVERY
def test_widths_and_reaches_are_those_of_the_layers(family, calls):
    model = new_model(tiny_config(family), init_seed=0)
    shape = model_shape(model)
    batch = pack_sequences([np.arange(4, 12)], row_length=8, pad_id=0)
    hidden_states(model, batch, causal=False)
    assert {width for width, _ in calls} == {shape.attention_width}
    assert Counter(reach for _, reach in calls) == Counter(dict(shape.reaches))


@EVERY
def test_weights_are_those_that_torch_multiplies(family):
    """One full row: torch counts padding; attention is left to other operations."""
    model = new_model(tiny_config(family), init_seed=0).double()  # oneDNN is not counted
    shape = model_shape(model)
    batch = pack_sequences([np.arange(4, 20)], row_length=16, pad_id=0)
    supervision = Supervision(batch, np.arange(5), np.arange(5), causal=False)
    with FlopCounterMode(display=False) as counter:
        summed_loss(model, supervision)
    counted = counter.get_flop_counts()["Global"]
    products = sum(counted.get(name, 0) for name in (torch.ops.aten.mm, torch.ops.aten.addmm))
    # The loss makes the head's gradients at once: two more products of the same size.
    gradients = 2 * 2 * 97 * 32 * 5
    assert products - gradients == 2 * (shape.body * 16 + shape.head * 5)


SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
}
EXPERTS = {**SMALL, "num_key_value_heads": 2, "num_experts_per_tok": 2}
SPARSE = {
    "mixtral": transformers.MixtralConfig(**EXPERTS, num_local_experts=8),
    "olmoe": transformers.OlmoeConfig(**EXPERTS, num_experts=8),
    "qwen2_moe": transformers.Qwen2MoeConfig(
        **EXPERTS, num_experts=8, moe_intermediate_size=24, shared_expert_intermediate_size=24
    ),
    "qwen3_moe": transformers.Qwen3MoeConfig(
        **EXPERTS, num_experts=8, moe_intermediate_size=24, head_dim=8, mlp_only_layers=[1]
    ),
    "jetmoe": transformers.JetMoeConfig(**EXPERTS, num_local_experts=8, kv_channels=8),
    "albert": transformers.AlbertConfig(
        **SMALL, embedding_size=16, num_hidden_groups=2, inner_group_num=2
    ),
}


@pytest.mark.parametrize("family", SPARSE)
def test_experts_count_where_tokens_go_and_shared_layers_as_often_as_they_run(family, calls):
    config = SPARSE[family]
    config._experts_implementation = "eager"  # products that torch counts
    model = new_model(config, init_seed=0).double()
    batch = pack_sequences([np.arange(4, 20)], row_length=16, pad_id=0)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        hidden_states(model, batch, causal=False)
    counted = counter.get_flop_counts()["Global"]
    products = sum(counted.get(name, 0) for name in (torch.ops.aten.mm, torch.ops.aten.addmm))
    shape = model_shape(model)
    assert products == 2 * shape.body * 16
    assert Counter(reach for _, reach in calls) == Counter(dict(shape.reaches))
    assert config_shape(config) == shape


@EVERY
def test_a_configuration_is_enough(family):
    built = model_shape(new_model(tiny_config(family), init_seed=0))
    assert config_shape(tiny_config(family)) == built


@pytest.mark.parametrize("preset", ["pico", "nano", "micro", "210m"])
def test_presets_by_arithmetic(preset):
    ids = {"bos": 0, "eos": 1, "pad": 2, "mask": 3}
    config = architecture_config(PRESETS[preset], vocab_size=300, max_seqlen=64, special_ids=ids)
    assert architecture_shape(PRESETS[preset], vocab_size=300) == config_shape(config)


@CAUSAL
@pytest.mark.parametrize("reach", [None, 0, 1, 3, 6, 7, 50])
@pytest.mark.parametrize("lengths", [(1,), (7,), (2, 9, 1, 4)])
def test_pairs_are_those_that_see_each_other(lengths, reach, causal):
    shape = ModelShape(body=0, head=0, attention_width=1, reaches=((reach, 2), (None, 1)))
    rows = pack_sequences([np.arange(each) for each in lengths], row_length=9, pad_id=0)

    def pairs(window: int | None) -> int:
        return sum(
            1
            for length in lengths
            for one in range(length)
            for other in range(length)
            if (window is None or abs(one - other) <= window) and not (causal and other > one)
        )

    wanted = 4 * (2 * pairs(reach) + pairs(None))
    assert shape.forward_flops(rows, supervised_tokens=0, causal=causal) == wanted
