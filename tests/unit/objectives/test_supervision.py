"""Supervised rows divided into parts."""

import numpy as np
import pytest

from biphasic.data.packing import pack_sequences
from biphasic.objectives.supervision import Supervision

LENGTH = 8


@pytest.fixture
def supervision() -> Supervision:
    """Five rows, in the last of which nothing is supervised."""
    lengths = [8, 5, 3, 6, 4, 4, 7]
    tokens = iter(range(100))
    rows = pack_sequences(
        [np.array([next(tokens) for _ in range(n)]) for n in lengths], row_length=LENGTH, pad_id=0
    )
    assert rows.num_rows == 5
    positions = np.array([0, 3, 9, 15, 16, 23, 24, 31])
    return Supervision(rows, positions, labels=positions * 10, causal=True)


@pytest.mark.parametrize(
    ("rows_per_part", "sizes"), [(1, [1, 1, 1, 1]), (2, [1, 2, 2]), (3, [2, 3]), (4, [2, 3])]
)
def test_parts_have_all_rows_and_labels(supervision, rows_per_part, sizes):
    parts = supervision.split(rows_per_part)
    assert [part.rows.num_rows for part in parts] == sizes
    assert all(part.causal for part in parts)
    for name in ("input_ids", "position_ids"):
        found = np.concatenate([getattr(part.rows, name) for part in parts])
        assert np.array_equal(found, getattr(supervision.rows, name)[: len(found)])
    assert np.concatenate([part.labels for part in parts]).tolist() == supervision.labels.tolist()
