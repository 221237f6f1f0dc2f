"""Embedding tables reduced to a few tokens while only these are trained.

A step of AdamW takes as long for a row that no sequence reads as for any other, and the table is
often half of a small encoder: 11.7 of MiniLM's 22.6 million parameters. The gradient of an unread
row is zero, so its moments stay zero and only weight decay changes it. Training therefore uses a
table of the rows that it reads, and the others decay all at once afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from biphasic.errors import ModelError
from biphasic.training.step.optimizer import MasterWeights


@dataclass
class ShortTable:
    """A model's weights, with an embedding table of only some tokens' rows."""

    weights: MasterWeights  # the weights to train
    # Factor that weight decay applies to the other rows; set before the table is restored.
    decay: float = 1.0
    was_read: bool = False  # whether the model has looked up any embedding


@contextmanager
def short_table(
    embedding: nn.Embedding, weights: MasterWeights, token_ids: NDArray[np.int64]
) -> Iterator[ShortTable]:
    """Reduce an embedding to the rows of some tokens; other tokens cannot be read."""
    # The layer's weight must be its own fp32 master. `token_ids` are distinct, int64 [num_tokens];
    # a padding token is added.
    table, padding_idx = embedding.weight, embedding.padding_idx
    if padding_idx is not None:
        token_ids = np.union1d(token_ids, padding_idx)
    rows = torch.from_numpy(token_ids).to(table.device)
    places = torch.full((len(table),), -1, device=table.device)
    places[rows] = torch.arange(len(rows), device=table.device)
    short = nn.Parameter(table.detach()[rows])
    replaced = {name: short for name, weight in weights.working.items() if weight is table}
    kept = ShortTable(
        MasterWeights({**weights.working, **replaced}, {**weights.masters, **replaced})
    )

    def look_up(_module: nn.Module, inputs: tuple[Tensor]) -> Tensor:
        kept.was_read = True
        return places[inputs[0]]

    hook = embedding.register_forward_pre_hook(look_up)
    embedding.weight = short
    if padding_idx is not None:
        embedding.padding_idx = int(places[padding_idx])
    try:
        yield kept
    finally:
        hook.remove()
        embedding.weight, embedding.padding_idx = table, padding_idx
        with torch.no_grad():
            table.mul_(kept.decay)
            table[rows] = short
    if not kept.was_read:
        raise ModelError("the model does not read its embeddings through their layer")
