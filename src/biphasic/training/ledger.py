"""Training costs by phase: documents, tokens, supervised tokens and FLOPs."""

from __future__ import annotations

from collections.abc import Sequence

from biphasic.data.packing import PackedBatch
from biphasic.data.rows import RowBatch
from biphasic.model.shape import ModelShape
from biphasic.records import LedgerEntry

_FORWARD_AND_BACKWARD = 3  # the backward pass costs two forward passes


def add_step(
    entries: Sequence[LedgerEntry],
    *,
    phase: int,
    objective: str,
    batch: RowBatch,
    supervised_tokens: int,
    flops: int,
) -> tuple[LedgerEntry, ...]:
    """Return the entries of the phases so far, in order, after one more update."""
    costs = {
        "steps": 1,
        "documents": sum(piece.start == 0 for piece in batch.pieces),
        "tokens": batch.packed.num_tokens,
        "supervised_tokens": supervised_tokens,
        "flops": flops,
    }
    if entries and entries[-1].phase == phase:
        *entries, last = entries
        costs = {name: getattr(last, name) + cost for name, cost in costs.items()}
    return (*entries, LedgerEntry(phase=phase, objective=objective, **costs))


def step_flops(
    shape: ModelShape, *, rows: PackedBatch, supervised_tokens: int, causal: bool
) -> int:
    """Count the floating-point operations of matrix products in one update."""
    # A multiply-add counts as two operations, and the backward pass as two forward passes.
    # Attention uses the true lengths of documents and the layers' windows, halved if it is causal;
    # the head counts supervised tokens only. Norms, softmax and the optimizer are omitted, as is
    # usual (Kaplan et al. 2020, arXiv:2001.08361, section 2.1). Frozen parameters count like
    # trained ones. If parts of a batch attend differently, `rows` is one of them.
    forward = shape.forward_flops(rows, supervised_tokens=supervised_tokens, causal=causal)
    return _FORWARD_AND_BACKWARD * forward
