"""What training cost."""

import numpy as np

from biphasic.data.packing import lay_out
from biphasic.data.rows import Piece, RowBatch
from biphasic.model.shape import Architecture, architecture_shape

TINY = Architecture(
    num_layers=2, hidden_size=8, intermediate_size=12, num_heads=4, num_key_value_heads=2
)


def batch_of(*lengths: int, row_length: int, starts: tuple[int, ...] = ()) -> RowBatch:
    """One row of sequences, special tokens included in their lengths."""
    sequences = [np.arange(length) + 4 for length in lengths]
    packed = lay_out(sequences, [range(len(lengths))], row_length=row_length, pad_id=2)
    pieces = tuple(
        Piece(0, number, start, start + length - 2)
        for number, (length, start) in enumerate(
            zip(lengths, starts or [0] * len(lengths), strict=True)
        )
    )
    return RowBatch(packed, pieces, packed.spans + np.array([1, -1]))


def flops(batch: RowBatch, *, causal: bool, supervised: int = 5, layers: int = 2) -> int:
    architecture = TINY.model_copy(update={"num_layers": layers})
    shape = architecture_shape(architecture, vocab_size=10)
    return shape.update_flops(batch.packed, supervised_tokens=supervised, causal=causal)


def test_by_hand():
    batch = batch_of(3, 4, row_length=10)  # 7 tokens; 3 of padding cost nothing
    # Per layer: query and output 2 * 8 * 8 = 128; key and value 2 * 8 * 4 = 64;
    # SwiGLU 3 * 8 * 12 = 288; 480 weights in all, 2 operations each, 7 tokens: 6,720.
    # Attention: scores and mixing, 2 * 2 * 8 = 32 a pair; 9 + 16 = 25 pairs: 800.
    # Head: 2 * 8 * 10 * 5 = 800. Backward costs twice the forward pass.
    assert flops(batch, causal=False) == 3 * (2 * (6720 + 800) + 800)
    # Causal: 3 * 4 / 2 + 4 * 5 / 2 = 16 pairs: 512.
    assert flops(batch, causal=True) == 3 * (2 * (6720 + 512) + 800)
