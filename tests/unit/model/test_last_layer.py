"""The last layer leaves out tokens whose states nobody reads; what is read stays the same."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from biphasic.data.packing import pack_sequences
from biphasic.model.compute.layers import recompute_activations, transformer_layers
from biphasic.model.loading.build import new_model
from biphasic.objectives.supervision import Supervision
from biphasic.training.step.passes import Pass, pass_loss
from families import tiny_config

READ = [1, 2, 2, 30, 40]  # a plugin may predict twice at one token


def pass_of(read: list[int]) -> Pass:
    """Return a pass over 41 tokens in two rows of 24, with labels at some of them."""
    tokens = [np.arange(4, 4 + length) for length in (20, 9, 12)]
    rows = pack_sequences(tokens, row_length=24, pad_id=0)
    labels = np.arange(len(read)) + 50
    return Pass.of(
        Supervision(rows, np.array(read, np.int64), labels, causal=False), first_position=0
    )


def trained(model: PreTrainedModel, given: Pass) -> tuple[Tensor, dict[str, Tensor | None], int]:
    """Return the loss of a pass, all gradients, and how many tokens the last MLP has read."""
    (_, layer), seen = transformer_layers(model)[-1], []
    hook = layer.get_submodule("mlp.down_proj").register_forward_hook(
        lambda _m, _i, output: seen.append(output.numel() // output.shape[-1])
    )
    loss = pass_loss(model, given)
    loss.backward()
    hook.remove()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return loss.detach(), gradients, seen[-1]


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "eurobert"])
def test_loss_and_gradients_are_those_of_the_whole_layer(family, recomputes):
    model = new_model(tiny_config(family), init_seed=0)
    if recomputes:
        recompute_activations(model)
        model.train()
    given = pass_of(READ)
    loss, gradients, num_read = trained(model, given)
    whole_loss, whole, num_whole = trained(model, replace(given, read_tokens=None))
    assert (num_read, num_whole) == (4, 48)
    torch.testing.assert_close(loss, whole_loss, rtol=1e-6, atol=0)
    for name, gradient in whole.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "read"), [("bert", READ), ("llama", list(range(41))), ("llama", [])]
)
def test_other_models_and_passes_read_all(family, read):
    """BERT's last layer has another form; with few tokens to leave out, picking costs more."""
    model, given = new_model(tiny_config(family), init_seed=0), pass_of(read)
    whole = replace(given, read_tokens=None)
    assert torch.equal(pass_loss(model, given), pass_loss(model, whole))
    assert family == "bert" or given.read_tokens is None
