"""Limits, shares and where they cut."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from biphasic.data.building.gather import Reach, fitting_quotas, largest_total, token_quotas


def reach(lengths, *, limit, positions=None, cuts=()):
    """Follow documents of some lengths, in shards that begin at `cuts`."""
    positions = range(len(lengths)) if positions is None else positions
    index = np.array([positions, lengths], dtype=np.int64).T
    found = Reach(*limit)
    for part in np.split(index, cuts):
        found.extend(part)
    return found.tokens, found.documents, found.stop


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ((), (20, 4, None)),
        ((21,), (20, 4, None)),
        ((20,), (20, 4, 9)),  # filled exactly, by the document at position 8
        ((19,), (11, 3, 8)),  # 11 + 9 would be too much
        ((11,), (11, 3, 6)),
        ((3,), (0, 0, 0)),  # the first has 4
        ((None, 4), (20, 4, 9)),
        ((None, 3), (11, 3, 6)),  # the empty one at position 3 is not counted
        ((12, 2), (6, 2, 3)),
    ],
)
@pytest.mark.parametrize("cuts", [(), (1,), (2, 3, 4)])
def test_where_a_limit_cuts(limit, expected, cuts):
    # 4 + 2 + 0 + 5 + 9 tokens; the positions between are held out.
    assert reach([4, 2, 0, 5, 9], limit=limit, positions=[0, 2, 3, 5, 8], cuts=cuts) == expected


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.integers(1, 60))
def test_a_limit_is_kept_and_no_further_document_would_fit(lengths, limit):
    tokens, _, stop = reach(lengths, limit=(limit,))
    kept = lengths if stop is None else lengths[:stop]
    assert tokens == sum(kept) <= limit
    if stop is None:
        assert sum(lengths) < limit
    else:
        assert tokens == limit or sum(lengths[: stop + 1]) > limit


@given(st.lists(st.tuples(st.floats(0.001, 1000), st.integers(1, 10**12)), min_size=1, max_size=5))
def test_quotas_can_be_filled(sources):
    shares, available = zip(*sources, strict=True)
    quotas = fitting_quotas(shares, available)
    assert all(quota <= tokens for quota, tokens in zip(quotas, available, strict=True))
    assert any(quota == tokens for quota, tokens in zip(quotas, available, strict=True))
    for place, tokens in enumerate(available):
        total = largest_total(shares, place, tokens)
        assert token_quotas(shares, total)[place] <= tokens
        assert token_quotas(shares, total + len(sources) * 10**6)[place] >= tokens - 1
