"""Models whose states on packed rows are not transformers' own are refused, before any work."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from biphasic.data.packing import pack_sequences
from biphasic.errors import ModelError
from biphasic.model.compute.attention import register_attention
from biphasic.model.compute.forward import (
    batching_of,
    hidden_states,
    packed_arguments,
    padded_states,
)
from biphasic.model.contract import check_contract, load_checked_encoder, probe_tokens
from biphasic.model.loading.build import load_encoder, load_pretrained, new_model
from families import SHARED, replaced_attention, tiny_config, with_head
from rounding import assert_as_exact, exactly

pytestmark = pytest.mark.slow

CAUSAL = pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
TWO_LAYERS: dict[str, Any] = {**SHARED, "num_hidden_layers": 2}
GROUPED = {**TWO_LAYERS, "num_key_value_heads": 2}
SLIDING = {"layer_types": ["sliding_attention", "full_attention"]}


def moe_config(name: str, **changes: Any) -> PretrainedConfig:
    """Return the configuration of a small mixture of experts."""
    settings = {
        "Mixtral": {"num_local_experts": 8},
        "Olmoe": {"num_experts": 8},
        "Phimoe": {"num_local_experts": 8},
        "Qwen2Moe": {
            "num_experts": 8, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24,
        },
        "Qwen3Moe": {"num_experts": 8, "moe_intermediate_size": 24, "head_dim": 8},
    }[name]  # fmt: skip
    kind = getattr(transformers, f"{name}Config")
    return kind(**GROUPED, num_experts_per_tok=2, **settings, **changes)


def esm_config() -> PretrainedConfig:
    return transformers.EsmConfig(
        **{**TWO_LAYERS, "pad_token_id": 1}, mask_token_id=5, token_dropout=True,
        position_embedding_type="rotary", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip


def save(config: PretrainedConfig, folder: Path) -> Path:
    with_head(config).save_pretrained(folder)
    return folder


@CAUSAL
@pytest.mark.parametrize(
    "config",
    [
        moe_config("Phimoe", sliding_window=7),
        moe_config("Qwen2Moe", use_sliding_window=True, sliding_window=7, **SLIDING),
        # Longer than any probe, as the windows of published models are.
        moe_config("Phimoe", sliding_window=50),
    ],
    ids=["phimoe", "qwen2_moe", "long"],
)
def test_a_window_made_by_masks_alone_is_refused(config, causal):
    model = new_model(config, init_seed=0)
    wanted = "hidden states of texts longer than sliding_window differ from those of transformers'"
    with pytest.raises(ModelError, match=rf"{type(model).__name__}: {wanted}"):
        check_contract(model, causal=causal)


@CAUSAL
@pytest.mark.parametrize("name", ["Mixtral", "Olmoe", "Phimoe", "Qwen2Moe", "Qwen3Moe"])
@pytest.mark.parametrize("seed", range(3))
def test_rounding_in_experts_refuses_no_mixture(name, seed, causal):
    check_contract(new_model(moe_config(name), init_seed=seed), causal=causal)


def test_chunks_are_refused():
    config = transformers.Llama4TextConfig(
        **GROUPED, intermediate_size_mlp=48, num_local_experts=4, head_dim=8, attention_chunk_size=7
    )
    register_attention()
    model = transformers.Llama4TextModel._from_config(config, attn_implementation="biphasic")
    with pytest.raises(ModelError, match="texts longer than attention_chunk_size"):
        check_contract(model, causal=True)


def test_what_counts_over_rows_is_read_padded(tmp_path):
    """ESM scales the embeddings of a row by its share of mask tokens."""
    folder = save(esm_config(), tmp_path)
    with pytest.raises(ModelError, match=r"EsmModel: .* other documents"):
        check_contract(load_encoder(folder), causal=False)
    assert batching_of(load_checked_encoder(folder)) == "padded"


def test_an_encoder_with_masked_windows_is_read_padded(tmp_path):
    folder = save(moe_config("Phimoe", sliding_window=7), tmp_path)
    model = load_checked_encoder(folder)
    assert batching_of(model) == "padded"
    config = transformers.AutoConfig.from_pretrained(folder)
    config.is_causal, config.sliding_window = False, 6  # it is counted without the token itself
    theirs = transformers.AutoModel.from_pretrained(
        folder, config=config, attn_implementation="eager", experts_implementation="eager"
    )
    tokens = probe_tokens(model, 20)
    row = torch.from_numpy(tokens)[None]
    with torch.no_grad():
        states, _ = padded_states(model.eval(), [tokens, tokens[:9]], pad_id=0)
        alone = theirs.eval()(input_ids=row).last_hidden_state[0]
        exact = exactly(lambda: theirs.double()(input_ids=row).last_hidden_state[0])
    assert_as_exact([states[:20]], [alone], [exact])


def test_both_ways_are_named_where_neither_is_right(tmp_path):
    config = transformers.StableLmConfig(**GROUPED)
    with pytest.raises(ModelError, match=r"causal .*packed rows: .* called without"):
        load_checked_encoder(save(config, tmp_path))


@pytest.fixture
def change_window() -> Iterator[Callable[[Callable[[int], int | None]], None]]:
    """Let our attention work with another window than it is given."""
    with ExitStack() as undo:

        def install(change: Callable[[int], int | None]) -> None:
            def changed(ours: Any, *states: Any, **options: Any) -> Any:
                if (window := options.get("sliding_window")) is not None:
                    options["sliding_window"] = change(window)
                return ours(*states, **options)

            undo.enter_context(replaced_attention(changed))

        yield install


@CAUSAL
@pytest.mark.parametrize("family", ["mistral", "gemma3", "modernbert"])
@pytest.mark.parametrize(
    "change", [lambda _: None, lambda window: window + 1], ids=["ignored", "one-wider"]
)
def test_windows_are_compared_to_the_token(family, change, causal, change_window):
    # As wide as those of published models, and as weakly attending as before any training.
    wide = {"local_attention": 128} if family == "modernbert" else {"sliding_window": 64}

    def check(num_positions: int) -> None:
        config = tiny_config(
            family, initializer_range=0.02, max_position_embeddings=num_positions, **wide
        )
        check_contract(new_model(config, init_seed=0), causal=causal)

    check(64)
    change_window(change)
    with pytest.raises(ModelError, match="longer than sliding_window"):
        check(65)  # of another configuration, as each is compared once


def test_transformers_is_run_once_for_each_configuration(change_window):
    def check(seed: int, *, causal: bool, **changes: Any) -> None:
        config = tiny_config("mistral", max_position_embeddings=66, **changes)
        check_contract(new_model(config, init_seed=seed), causal=causal)

    check(0, causal=True)
    change_window(lambda _: None)  # which only a comparison shows
    check(1, causal=True)  # other weights, the same code
    for other in ({"causal": False}, {"causal": True, "num_hidden_layers": 1}):
        with pytest.raises(ModelError, match="longer than sliding_window"):
            check(0, **other)


def test_the_probe_does_not_change_random_numbers_or_weights():
    model = new_model(tiny_config("gemma3"), init_seed=0)
    config = model.config.to_dict()
    before: list[Tensor] = [weight.clone() for weight in model.state_dict().values()]
    state = torch.get_rng_state()
    check_contract(model, causal=False)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, before, model.state_dict().values()))
    assert all(weight.grad is None for weight in model.parameters())
    assert model.config.to_dict() == config
    assert batching_of(model) == "packed"


@CAUSAL
def test_no_size_of_the_vocabulary_makes_a_model_causal(causal):
    """With 738 entries, two draws are the same token: a change of it changes nothing."""
    model = new_model(tiny_config("eurobert", vocab_size=738), init_seed=0)
    check_contract(model, causal=causal)


def gemma3n(**changes: Any) -> PreTrainedModel:
    config = transformers.Gemma3nTextConfig(
        **GROUPED, **SLIDING, head_dim=8, num_kv_shared_layers=0, vocab_size_per_layer_input=97,
        hidden_size_per_layer_input=8, laurel_rank=4, altup_num_inputs=4, sliding_window=5,
        activation_sparsity_pattern=[0.0, 0.0], **changes,
    )  # fmt: skip
    return new_model(config, init_seed=0)


@CAUSAL
def test_states_with_an_axis_more_are_probed(causal):
    """Gemma 3n's layers take several versions of every token's state."""
    check_contract(gemma3n(), causal=causal)


@CAUSAL
def test_states_with_an_axis_more_hide_no_leak(causal):
    model = gemma3n()
    layer = model.base_model.layers[1]
    layer.register_forward_hook(lambda _m, _i, output: output + output.mean(2, keepdim=True))
    with pytest.raises(ModelError, match=r"layers\.1: .* other documents"):
        check_contract(model, causal=causal)


UNREADABLE = {
    "llama4": (
        transformers.Llama4TextConfig(
            **GROUPED, intermediate_size_mlp=48, num_local_experts=4, head_dim=8
        ),
        "Llama4ForCausalLM: transformers does not separate its body and its language-model head",
    ),
    "lfm2": (
        transformers.Lfm2Config(
            **GROUPED, layer_types=["conv", "full_attention"], block_multiple_of=8
        ),
        # transformers 5.17 takes packed rows, but its convolution reads across documents.
        r"Lfm2ForCausalLM: cannot read packed rows|layers\.0: .* other documents",
    ),
}


@pytest.mark.parametrize("family", UNREADABLE)
def test_what_cannot_be_adapted_is_refused_in_one_line(family, tmp_path):
    config, reason = UNREADABLE[family]
    with pytest.raises(ModelError, match=reason) as error:
        check_contract(load_pretrained(save(config, tmp_path)), causal=True)
    assert "\n" not in str(error.value)


def test_a_layer_beside_attention_is_probed(tmp_path):
    """Jamba's attention reads packed rows, its state-space layers do not."""
    config = transformers.JambaConfig(
        **GROUPED, num_experts=2, num_experts_per_tok=1, attn_layer_period=2, attn_layer_offset=1,
        use_mamba_kernels=False, mamba_dt_rank=4,
    )  # fmt: skip
    model = load_pretrained(save(config, tmp_path))
    with pytest.raises(ModelError, match=r"layers\.0: .* other documents"):
        check_contract(model, causal=True)


@pytest.mark.parametrize("mask", [None, torch.ones(1, 4)])
def test_a_mask_that_hides_nothing_is_no_padding(mask):
    """BioGPT makes a mask of ones if it gets none."""
    model = new_model(tiny_config("biogpt"), init_seed=0)
    batch = pack_sequences([np.array([3, 4]), np.array([5, 6])], row_length=4, pad_id=0)
    arguments = packed_arguments(model, batch, causal=True)
    states = model.base_model(**arguments, attention_mask=mask).last_hidden_state
    packed = hidden_states(model, batch, causal=True)
    exact = exactly(lambda: hidden_states(model.double(), batch, causal=True))
    assert_as_exact([states.flatten(0, 1)], [packed], [exact])
    with pytest.raises(ModelError, match="padding is a separate segment"):
        model.base_model(**arguments, attention_mask=torch.tensor([[1, 1, 1, 0]]))
