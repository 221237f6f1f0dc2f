"""Sequences into rows."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from biphasic.data.packing import best_fit, lay_out, pack_sequences
from biphasic.errors import DataError

CAPACITY = 50
LENGTHS = st.lists(st.integers(1, CAPACITY), max_size=80).map(lambda xs: np.array(xs, dtype=int))
PAD = 99


def bins_of(lengths: np.ndarray, *, capacity: int) -> list[list[int]]:
    """Return what is in each bin."""
    items, borders = best_fit(lengths, capacity=capacity)
    return [items[start:end].tolist() for start, end in pairwise(borders.tolist())]


def bins_one_by_one(lengths: np.ndarray, *, capacity: int) -> list[list[int]]:
    """Pack as the definition says, looking at every bin for every item."""
    bins: list[list[int]] = []
    last_filled: list[int] = []
    for turn, item in enumerate(sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))):
        rooms = [capacity - lengths[members].sum() for members in bins]
        fitting = [index for index, room in enumerate(rooms) if room >= lengths[item]]
        if fitting:
            chosen = min(fitting, key=lambda index: (rooms[index], -last_filled[index]))
            bins[chosen].append(item)
            last_filled[chosen] = turn
        else:
            bins.append([item])
            last_filled.append(turn)
    return bins


@given(LENGTHS)
def test_best_fit_matches_its_definition(lengths):
    expected = bins_one_by_one(lengths, capacity=CAPACITY)
    assert bins_of(lengths, capacity=CAPACITY) == expected


def test_too_long_is_refused():
    with pytest.raises(DataError, match="11 tokens does not fit in 10"):
        best_fit(np.array([3, 11]), capacity=10)
    with pytest.raises(DataError, match="5 tokens does not fit in 4"):
        pack_sequences([np.arange(5)], row_length=4, pad_id=PAD)


def test_lay_out_by_hand():
    sequences = [np.array([7, 8]), np.array([1, 2, 3]), np.array([4, 5, 6, 7, 8])]
    batch = lay_out(sequences, [[1, 0], [2]], row_length=6, pad_id=PAD)
    assert batch.input_ids.tolist() == [[1, 2, 3, 7, 8, PAD], [4, 5, 6, 7, 8, PAD]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 4, 0]]
    # Rows of 6: the padding at 5 and at 11 is a segment of its own.
    assert batch.cu_seqlens.tolist() == [0, 3, 5, 6, 11, 12]
    # In the order the sequences were given, not in that of the rows.
    assert batch.spans.tolist() == [[3, 5], [0, 3], [6, 11]]
    assert (batch.num_rows, batch.row_length, batch.num_tokens, batch.max_seqlen) == (2, 6, 10, 5)


@given(LENGTHS.filter(len))
def test_packed_batch_is_consistent(lengths):
    # Every token has a number of its own, so its place can be looked up.
    ends = np.cumsum(lengths) + 100
    sequences = [np.arange(end - n, end) for n, end in zip(lengths, ends, strict=True)]
    batch = pack_sequences(sequences, row_length=CAPACITY, pad_id=PAD)
    flat, positions = batch.input_ids.reshape(-1), batch.position_ids.reshape(-1)
    for (start, end), sequence in zip(batch.spans.tolist(), sequences, strict=True):
        assert flat[start:end].tolist() == sequence.tolist()
        assert start // CAPACITY == (end - 1) // CAPACITY
    assert (flat == PAD).sum() == flat.size - lengths.sum()
    borders = batch.cu_seqlens.tolist()
    assert borders[0] == 0
    assert borders[-1] == flat.size
    assert all(a < b for a, b in pairwise(borders))
    for start, end in pairwise(borders):
        assert positions[start:end].tolist() == list(range(end - start))
        # A segment is a whole sequence, or padding to the end of its row.
        is_padding = flat[start:end] == PAD
        assert is_padding.all() or [start, end] in batch.spans.tolist()
        assert not is_padding.any() or end % CAPACITY == 0
    assert batch.input_ids.dtype == batch.position_ids.dtype == batch.spans.dtype == np.int64
    assert batch.cu_seqlens.dtype == np.int32
