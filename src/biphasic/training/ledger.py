"""Training costs by phase: documents, tokens, supervised tokens and FLOPs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from biphasic.data.packing import PackedBatch
from biphasic.data.rows import RowBatch
from biphasic.model.shape import ModelShape
from biphasic.records import LedgerEntry

_FORWARD_AND_BACKWARD = 3  # the backward pass costs two forward passes


@dataclass
class PhaseCost:
    """Cost of one phase so far.

    Attributes:
        phase: Its index.
        documents: Documents started; chunks of a long one count once.
        tokens: Tokens read, including special tokens and excluding padding.
        supervised_tokens: Tokens predicted.
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
    """Costs of all phases that a run has started, in order."""

    def __init__(self, entries: Sequence[LedgerEntry] = ()) -> None:
        """Continue from the entries of a record."""
        self.phases = [PhaseCost(**entry.model_dump()) for entry in entries]

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

    def entries(self) -> tuple[LedgerEntry, ...]:
        """Return one entry per phase."""
        return tuple(LedgerEntry(**asdict(cost)) for cost in self.phases)


def step_flops(
    shape: ModelShape, *, rows: PackedBatch, supervised_tokens: int, causal: bool
) -> int:
    """Count the floating-point operations of matrix products in one update.

    A multiply-add counts as two operations, and the backward pass as two forward passes. Attention
    uses the true lengths of documents and the layers' windows, halved if it is causal; the head
    counts supervised tokens only. Norms, softmax and the optimizer are omitted, as is usual (Kaplan
    et al. 2020, arXiv:2001.08361, section 2.1). Frozen parameters count like trained ones. If parts
    of a batch attend differently, `rows` is one of them.
    """
    forward = shape.forward_flops(rows, supervised_tokens=supervised_tokens, causal=causal)
    return _FORWARD_AND_BACKWARD * forward
