"""Models that break the attention contract are refused, by the name of the layer."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from biphasic.errors import ModelError
from biphasic.model import contract
from biphasic.model.compute.attention import attention_arguments
from biphasic.model.contract import check_contract
from biphasic.model.loading.build import load_encoder, new_model
from biphasic.training.step.optimizer import set_precision
from families import replaced_attention, tiny_config

CAUSAL = pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
Change = Callable[[dict[str, Any], Tensor], None]


@pytest.fixture
def change_layer(model: PreTrainedModel) -> Iterator[Callable[[Change], None]]:
    """Let the attention of layer 1 alone work with other arguments."""
    target = model.base_model.layers[1].self_attn

    def changed(
        change: Change, ours: Any, module: nn.Module, query: Tensor, *states: Any, **options: Any
    ) -> Any:
        if module is target:
            change(options, query)
        return ours(module, query, *states, **options)

    with ExitStack() as undo:
        yield lambda change: undo.enter_context(replaced_attention(partial(changed, change)))


def segments_of(options: dict[str, Any], cu_seqlens: Tensor, query: Tensor, causal: bool) -> None:
    """Attend within other segments, or in another direction."""
    options |= attention_arguments(
        cu_seqlens,
        max_seqlen=query.shape[2],
        shape=(query.shape[0], query.shape[2]),
        causal=causal,
        dtype=query.dtype,
    )


def other_direction(options: dict[str, Any], query: Tensor) -> None:
    segments_of(options, options["cu_seqlens"], query, not options["causal"])


def whole_rows(options: dict[str, Any], query: Tensor) -> None:
    rows, row_length = query.shape[0], query.shape[2]
    borders = torch.arange(rows + 1, dtype=torch.int32) * row_length
    segments_of(options, borders, query, options["causal"])


def last_with_padding(options: dict[str, Any], query: Tensor) -> None:
    borders = options["cu_seqlens"]
    joined = torch.cat([borders[:-2], borders[-1:]])
    segments_of(options, joined, query, options["causal"])


@CAUSAL
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_sound_model_passes(precision, causal, model):
    set_precision(model, precision)
    before = [weight.clone() for weight in model.parameters()]
    check_contract(model.train(), causal=causal)
    assert model.training
    assert all(map(torch.equal, before, model.parameters()))
    assert not any(layer._forward_hooks for layer in model.base_model.layers)
    check_contract(model.eval(), causal=causal)
    assert not model.training


def test_known_weights_are_probed_once(model, monkeypatch):
    def refuse(*_: object, **__: object) -> list[tuple[str, Tensor]]:
        raise ModelError("probed")

    check_contract(model, causal=False, weights="known")
    monkeypatch.setattr(contract, "transformer_layers", refuse)
    check_contract(model, causal=False, weights="known")
    with pytest.raises(ModelError, match="probed"):
        check_contract(model, causal=False, weights="other")
    with pytest.raises(ModelError, match="probed"):
        check_contract(model, causal=True, weights="known")
    with pytest.raises(ModelError, match="probed"):
        check_contract(model, causal=False)


@CAUSAL
@pytest.mark.parametrize("share", [1e-3, 1e-6])
def test_influence_that_bf16_rounds_away_is_influence(share, causal, model):
    """Trained layers may hardly attend to what the probe holds."""
    for layer in model.base_model.layers:
        layer.self_attn.o_proj.weight.data.mul_(share)
    set_precision(model, "bf16")
    check_contract(model, causal=causal)


@CAUSAL
@pytest.mark.parametrize("window", [1, 2, 5])
def test_windows_under_the_probes_length(window, causal):
    check_contract(
        new_model(tiny_config("mistral", sliding_window=window), init_seed=0), causal=causal
    )
    local = tiny_config("modernbert", local_attention=2 * window)
    check_contract(new_model(local, init_seed=0), causal=causal)


@pytest.mark.parametrize(
    ("change", "causal", "message"),
    [
        (other_direction, False, "stays causal"),
        (other_direction, True, "attends to later tokens"),
        (whole_rows, False, "tokens attend to other documents"),
        (whole_rows, True, "tokens attend to other documents"),
        (last_with_padding, False, "tokens attend to the padding"),
    ],
)
def test_a_layer_is_named_and_left_as_it_was(change, causal, message, model, change_layer):
    change_layer(change)
    with pytest.raises(ModelError, match=rf"layer layers\.1: {message}"):
        check_contract(model.train(), causal=causal)
    assert model.training
    for layer in model.base_model.layers:
        assert not layer._forward_hooks
        assert not layer._forward_pre_hooks


@CAUSAL
def test_a_layer_that_mixes_without_attention(causal, model):
    """No mask keeps the mean over a row within a document."""
    layer = model.base_model.layers[1]
    layer.register_forward_hook(lambda _m, _i, output: output + output.mean(1, keepdim=True))
    with pytest.raises(ModelError, match=r"layer layers\.1: tokens attend"):
        check_contract(model, causal=causal)


def test_a_layer_that_leaks_from_later_documents_alone(model):
    """What follows a token is added to it: nothing flows from the first document to the second."""
    layer = model.base_model.layers[1]
    layer.register_forward_hook(lambda _m, _i, output: output.flip(1).cumsum(1).flip(1))
    with pytest.raises(ModelError, match=r"layers\.1: .* other documents"):
        check_contract(model, causal=False)


def test_weights_that_have_diverged_are_not_called_a_leak(model):
    with torch.no_grad():
        model.base_model.layers[1].mlp.up_proj.weight.fill_(3e38)
    with pytest.raises(ModelError, match=r"layers\.1: its states are not finite"):
        check_contract(model, causal=False)


def test_a_body_that_mixes_in_the_padding(model):
    """Outside of every layer: the probe of the whole model finds it."""
    model.base_model.norm.register_forward_hook(lambda _m, _i, output: output * output.shape[1])
    with pytest.raises(ModelError, match=r"EuroBertForMaskedLM: .* other documents"):
        check_contract(model, causal=False)


SMALL = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}


@pytest.fixture
def padded(tmp_path: Path) -> Callable[[PretrainedConfig], PreTrainedModel]:
    """Load a random model of a configuration behind its own attention."""

    def load(config: PretrainedConfig) -> PreTrainedModel:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            transformers.AutoModel.from_config(config).save_pretrained(tmp_path)
        return load_encoder(tmp_path, batching="padded")

    return load


Padded = Callable[[PretrainedConfig], PreTrainedModel]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", [transformers.BertConfig, transformers.LlamaConfig])
def test_a_sound_model_passes_behind_its_own_attention(kind, precision, padded):
    # Sixteen positions: no row of the probe is longer than what a small encoder reads.
    model = padded(kind(**SMALL, num_hidden_layers=2, max_position_embeddings=16))
    set_precision(model, precision)
    before = [parameter.clone() for parameter in model.parameters()]
    check_contract(model, causal=False)
    assert all(map(torch.equal, before, model.parameters()))


def test_a_decoder_that_heeds_no_switch_is_refused(padded):
    model = padded(
        transformers.GPTNeoConfig(
            vocab_size=300, hidden_size=32, num_layers=2, num_heads=2,
            attention_types=[[["global"], 2]],
        )
    )  # fmt: skip
    with pytest.raises(ModelError, match=r"layer h\.0: stays causal"):
        check_contract(model, causal=False)


def test_a_decoder_that_is_causal_without_padding_alone_is_refused(padded):
    """A mask makes it two-sided; without one its kernel is causal."""
    model = padded(transformers.StableLmConfig(**SMALL, num_key_value_heads=2, num_hidden_layers=2))
    with pytest.raises(ModelError, match=r"layers\.0: stays causal"):
        check_contract(model, causal=False)


def test_layers_that_cannot_be_probed_are_refused(padded):
    model = padded(transformers.SqueezeBertConfig(**SMALL, num_hidden_layers=2, embedding_size=32))
    with pytest.raises(ModelError, match=r"layer encoder\.layers\.0: was not run"):
        check_contract(model, causal=False)


def test_a_layer_behind_its_own_attention_that_sees_the_padding(padded):
    model = padded(transformers.BertConfig(**SMALL, num_hidden_layers=2))
    layer = model.encoder.layer[1]
    layer.register_forward_hook(lambda _m, _i, output: output + output.mean(1, keepdim=True))
    with pytest.raises(ModelError, match=r"encoder\.layer\.1: .* the padding"):
        check_contract(model, causal=False)


@pytest.mark.parametrize("causal", [True, False])
def test_a_model_whose_padding_is_no_token_is_probed(causal):
    config = tiny_config("llama")
    config.pad_token_id = -1
    model = new_model(config, init_seed=0)
    check_contract(model, causal=causal)
