"""A table of the rows that training reads, against training with the whole table."""

import numpy as np
import pytest
import torch
from torch import nn

from biphasic.errors import ModelError
from biphasic.training.optimizers.adamw import AdamW
from biphasic.training.step.optimizer import Optimizer
from biphasic.training.step.weights import MasterWeights, short_table

READ = np.array([2, 5, 11, 19])
PADDING = 1


def new_embedding(padding_idx: int | None = PADDING) -> tuple[nn.Embedding, MasterWeights]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        embedding = nn.Embedding(20, 6, padding_idx=padding_idx)
    weights = dict(embedding.named_parameters())
    return embedding, MasterWeights(weights, dict(weights))


def train(embedding: nn.Embedding, weights: MasterWeights) -> Optimizer:
    """Take steps on batches that read some of the tokens, and padding."""
    optimizer = Optimizer(weights, AdamW(max_gradient_norm=0.5))
    generator = torch.Generator().manual_seed(1)
    for step in range(6):
        tokens = torch.from_numpy(READ)[torch.randint(len(READ), (8,), generator=generator)]
        tokens[0] = PADDING
        wanted = torch.randn(8, 6, generator=generator)
        (embedding(tokens) - wanted).square().sum().backward()
        optimizer.step(0.01 * (step + 1))
    return optimizer


@pytest.mark.parametrize("padding_idx", [PADDING, None])
def test_the_whole_table_ends_as_if_it_had_been_trained(padding_idx):
    whole, weights = new_embedding(padding_idx)
    train(whole, weights)
    embedding, weights = new_embedding(padding_idx)
    read = READ if padding_idx is not None else np.append(READ, PADDING)
    with short_table(embedding, weights, np.sort(read)) as table:
        assert embedding.weight.shape == (5, 6)
        table.decay = train(embedding, table.weights).decay
    assert embedding.weight is weights.masters["weight"]
    torch.testing.assert_close(embedding.weight, whole.weight, rtol=1e-6, atol=1e-7)
    initial, _ = new_embedding(padding_idx)
    moved = (embedding.weight - 0.979 * initial.weight).abs().amax(1) > 0.01
    assert moved.nonzero().flatten().tolist() == sorted(read.tolist())
    assert table.decay == pytest.approx(0.979, abs=1e-3)


def test_tokens_of_others_cannot_be_read():
    embedding, weights = new_embedding()
    with short_table(embedding, weights, READ):
        embedding(torch.tensor([5, PADDING]))
        with pytest.raises(IndexError):
            embedding(torch.tensor([6]))


def test_all_is_put_back_after_an_error():
    embedding, weights = new_embedding()
    table = embedding.weight
    before = table.detach().clone()
    with pytest.raises(ZeroDivisionError), short_table(embedding, weights, READ):
        raise ZeroDivisionError
    assert embedding.weight is table
    assert embedding.padding_idx == PADDING
    assert torch.equal(table, before)
    assert torch.equal(embedding(torch.tensor([6, 19])), before[[6, 19]])


def test_a_model_that_reads_past_the_layer_is_refused():
    embedding, weights = new_embedding()
    with (
        pytest.raises(ModelError, match="through their layer"),
        short_table(embedding, weights, READ),
    ):
        pass
