"""The parts of a language-model head, and the probe that finds heads with more."""

import pytest
import torch
import transformers
from torch import nn
from transformers import PreTrainedModel

from biphasic.errors import ModelError
from biphasic.model.head import check_head, language_model_head
from biphasic.model.loading.build import new_model
from biphasic.training.step.optimizer import set_precision
from families import FAMILIES, SHARED, tiny_config

EVERY = pytest.mark.parametrize("family", FAMILIES)
WITH_TRANSFORM = {"bert", "roberta", "modernbert", "modernbert-decoder"}


@EVERY
def test_parts_by_family(family):
    model = new_model(tiny_config(family), init_seed=0)
    head = language_model_head(model)
    assert head.weight.shape == (97, 32)
    is_tied = head.weight is model.get_input_embeddings().weight
    assert is_tied == model.config.tie_word_embeddings
    assert (head.bias is not None) == (family in WITH_TRANSFORM)
    assert head.softcap == (3.0 if family == "gemma2" else None)
    states = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(head.transformed(states), states) == (family not in WITH_TRANSFORM)


@EVERY
def test_the_probe_passes_and_leaves_no_trace(family):
    model = new_model(tiny_config(family), init_seed=0).train()
    before = [parameter.clone() for parameter in model.parameters()]
    check_head(model)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(map(torch.equal, before, model.parameters()))


@EVERY
def test_logits_in_mixed_precision(family):
    # Tied weights stay in fp32, while the layer before them is rounded.
    model = new_model(tiny_config(family), init_seed=0).eval()
    states = torch.randn(5, 32, generator=torch.Generator().manual_seed(0)).bfloat16().float()
    with torch.no_grad():
        expected = language_model_head(model).logits(states)
        set_precision(model, "bf16")
        difference = (language_model_head(model).logits(states) - expected).abs().max()
    assert difference <= 0.05 * expected.abs().max()


def scaled(model: PreTrainedModel) -> None:
    model.lm_head.register_forward_hook(lambda _m, _i, output: output * 1.01)


def shifted(model: PreTrainedModel) -> None:
    model.lm_head.register_forward_hook(lambda _m, _i, output: output + 0.01 * output.abs().max())


def normed(model: PreTrainedModel) -> None:
    norm = nn.LayerNorm(32)
    model.lm_head.register_forward_pre_hook(lambda _m, inputs: (norm(inputs[0]),))


@pytest.mark.parametrize("change", [scaled, shifted, normed])
def test_a_head_that_does_more_is_refused(change):
    model = new_model(tiny_config("qwen3"), init_seed=0)
    check_head(model)
    change(model)
    with pytest.raises(ModelError, match=r"Qwen3ForCausalLM: .*head does more"):
        check_head(model)


def test_a_head_that_contains_the_product_is_no_layer_before_it():
    model = new_model(tiny_config("qwen3"), init_seed=0)
    model.head = nn.Sequential(nn.Linear(32, 32), model.lm_head)
    assert language_model_head(model).transform is None


@pytest.mark.parametrize("config", [transformers.ElectraConfig, transformers.AlbertConfig])
def test_a_head_that_changes_the_width_is_refused(config):
    model = new_model(config(**SHARED, embedding_size=16), init_seed=0)
    with pytest.raises(ModelError, match=r"ForMaskedLM: .*head does more .*their widths differ"):
        check_head(model)


def test_a_body_has_no_head():
    body = transformers.AutoModel.from_config(tiny_config("bert"))
    with pytest.raises(ModelError, match="BertModel has no language-model head"):
        language_model_head(body)
