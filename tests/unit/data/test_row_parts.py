"""Rows taken out of a batch are the rows that they were."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from biphasic.data.packing import lay_out
from biphasic.data.rows import Piece, RowBatch


def batch_of(lengths: list[list[int]], *, row_length: int = 12) -> RowBatch:
    """Lay out rows of sequences of given lengths, in the order of rows."""
    flat = [length for row in lengths for length in row]
    sequences = [np.full(length, 10 + number) for number, length in enumerate(flat)]
    ends = np.cumsum([len(row) for row in lengths]).tolist()
    rows = [range(end - len(row), end) for row, end in zip(lengths, ends, strict=True)]
    packed = lay_out(sequences, rows, row_length=row_length, pad_id=1)
    pieces = tuple(Piece(0, number, 0, length) for number, length in enumerate(flat))
    return RowBatch(packed, pieces, packed.spans + np.array([1, -1]))


ROWS = st.lists(st.lists(st.integers(2, 4), min_size=1, max_size=3), min_size=1, max_size=6)


@given(ROWS, st.data())
def test_a_part_equals_its_rows_alone(rows, data):
    start = data.draw(st.integers(0, len(rows) - 1))
    end = data.draw(st.integers(start + 1, len(rows)))
    whole = batch_of(rows)
    part = whole.part(start, end)
    # The same rows laid out alone, with the sequences numbered as they are in the whole.
    alone = batch_of(rows[start:end])
    skipped = sum(map(len, rows[:start]))
    shifted = np.where(alone.packed.input_ids == 1, 1, alone.packed.input_ids + skipped)
    assert np.array_equal(part.packed.input_ids, shifted)
    for name in ("position_ids", "cu_seqlens", "spans"):
        one, other = getattr(part.packed, name), getattr(alone.packed, name)
        assert np.array_equal(one, other)
        assert one.dtype == other.dtype
    assert np.array_equal(part.is_token, alone.is_token)
    assert part.pieces == whole.pieces[skipped : skipped + len(alone.pieces)]
