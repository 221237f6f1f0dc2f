"""What training cost: documents, tokens, supervised tokens and FLOPs, by phase."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from biphasic.data.rows import RowBatch
from biphasic.model.presets import Architecture

_FORWARD_AND_BACKWARD = 3  # the backward pass costs two forward passes


@dataclass
class PhaseCost:
    """Cost of one phase so far.

    Attributes:
        phase: Its number.
        objective: Its objective's name.
        steps: Optimizer updates.
        documents: Documents begun, chunks of long ones counted once.
        tokens: Tokens read, special tokens included and padding excluded.
        supervised_tokens: Tokens that were predicted.
        flops: Model FLOPs (`step_flops`).
    """

    phase: int
    objective: str
    steps: int = 0
    documents: int = 0
    tokens: int = 0
    supervised_tokens: int = 0
    flops: int = 0


class Ledger:
    """Costs of all phases that a run has begun, in order."""

    def __init__(self, entries: list[dict[str, Any]] | None = None) -> None:
        """Continue from entries as `dump` returned them."""
        self.phases = [PhaseCost(**entry) for entry in entries or []]

    def add(
        self, *, phase: int, objective: str, batch: RowBatch, supervised_tokens: int, flops: int
    ) -> None:
        """Record one update."""
        if not self.phases or self.phases[-1].phase != phase:
            self.phases.append(PhaseCost(phase, objective))
        cost = self.phases[-1]
        cost.steps += 1
        cost.documents += sum(piece.start == 0 for piece in batch.pieces)
        cost.tokens += batch.packed.num_tokens
        cost.supervised_tokens += supervised_tokens
        cost.flops += flops

    @property
    def tokens(self) -> int:
        """Tokens read in all phases."""
        return sum(cost.tokens for cost in self.phases)

    def dump(self) -> list[dict[str, Any]]:
        """Return the entries as JSON."""
        return [asdict(cost) for cost in self.phases]


def step_flops(
    architecture: Architecture,
    *,
    vocab_size: int,
    batch: RowBatch,
    supervised_tokens: int,
    causal: bool,
) -> int:
    """Count the floating-point operations of matrix products in one update.

    Two per multiply-add; backward twice forward; attention by the true lengths of the documents,
    halved where it is causal; the head on supervised tokens only. Norms, softmax and the
    optimizer are left out, as is usual (Kaplan et al. 2020, arXiv:2001.08361, section 2.1).
    """
    width = architecture.hidden_size
    key_value_width = width // architecture.num_heads * architecture.num_key_value_heads
    matrices = 2 * width * width + 2 * width * key_value_width
    matrices += 3 * width * architecture.intermediate_size
    lengths = batch.packed.spans[:, 1] - batch.packed.spans[:, 0]
    pairs = int((lengths * (lengths + 1) // 2 if causal else lengths * lengths).sum())
    per_layer = 2 * matrices * int(np.sum(lengths)) + 2 * 2 * width * pairs
    head = 2 * width * vocab_size * supervised_tokens
    return _FORWARD_AND_BACKWARD * (architecture.num_layers * per_layer + head)
