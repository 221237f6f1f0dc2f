"""Attention by document: the states and gradients of all scores, from fewer of them."""

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from biphasic.data.packing import pack_sequences
from biphasic.model.compute.attention import attention_arguments, block_mask, packed_attention
from biphasic.model.cpu import kernels
from biphasic.model.cpu.kernels import cpu_kernels
from rounding import assert_as_exact

PRECISIONS = [torch.float32, torch.bfloat16]
ROWS = {
    "short": (40, [40, 25, 15, 31]),
    "blocks": (300, [300, 290, 10, 65, 64, 1]),
    "long": (1100, [1100, 600, 500, 513]),
}


@pytest.fixture(autouse=True)
def documents_of_any_length(monkeypatch):
    monkeypatch.setattr(kernels, "_SCORES_PER_DOCUMENT", 0)


def rows_of(row_length, lengths):
    return pack_sequences([np.arange(n) % 50 for n in lengths], row_length=row_length, pad_id=0)


def drawn(rows, dtype, *, heads=2, head_dim=16, value_dim=None, across=False):
    """Return queries, keys, values, and a gradient of the output."""
    draws = torch.Generator().manual_seed(0)
    dims = (head_dim, head_dim, value_dim or head_dim, value_dim or head_dim)
    states = [
        torch.randn(*rows.input_ids.shape, heads, dim, generator=draws).to(dtype) for dim in dims
    ]
    *inputs, gradient = (each.transpose(1, 2) for each in states)
    if across:  # neighbours in a head are not neighbours in memory
        inputs = [each.mT.contiguous().mT for each in inputs]
    return [each.requires_grad_() for each in inputs], gradient.transpose(1, 2)


def attend(rows, inputs, gradient, *, causal, are_on=True, **options):
    """Return the output and the gradients of queries, keys and values."""
    segments, dtype = torch.from_numpy(rows.cu_seqlens), inputs[0].dtype
    with cpu_kernels(are_on):
        arguments = attention_arguments(
            segments, max_seqlen=rows.max_seqlen, shape=rows.input_ids.shape, causal=causal,
            dtype=dtype,
        )  # fmt: skip
        output, _ = packed_attention(torch.nn.Module(), *inputs, None, **arguments, **options)
        found = torch.autograd.grad(output, inputs, gradient)
    return [output.detach(), *found]


def attend_whole(rows, inputs, gradient, *, dtype, causal, window=None, scaling=None):
    """Return the same from all scores, by torch's attention."""
    whole = [each.detach().to(dtype).requires_grad_() for each in inputs]
    shape, segments = rows.input_ids.shape, torch.from_numpy(rows.cu_seqlens)
    mask = block_mask(segments, shape=shape, causal=causal, dtype=dtype)
    if window is not None:
        places = torch.arange(shape[1])
        is_far = (places[:, None] - places).abs() >= window
        mask = mask.masked_fill(is_far, float("-inf"))
    with sdpa_kernel(SDPBackend.MATH):  # another one in bf16 does not run on every processor
        output = functional.scaled_dot_product_attention(*whole, attn_mask=mask, scale=scaling)
    found = torch.autograd.grad(output, whole, gradient.transpose(1, 2).to(dtype))
    return [output.detach().transpose(1, 2), *found]


def assert_as_torch(actual, rows, inputs, gradient, **options):
    """Compare with torch's own results from all scores, by their errors."""
    both = (
        attend_whole(rows, inputs, gradient, dtype=dtype, **options)
        for dtype in (inputs[0].dtype, torch.float64)
    )
    # A token that reads itself alone has weights of one, whose gradients cancel.
    assert_as_exact(actual, *both, cancelled=float(gradient.abs().max()))


@pytest.fixture
def scores(monkeypatch):
    """Scores that each call computes, for one head."""
    counts: list[int] = []
    original = kernels._blocks

    def counted(*args, **options):
        blocks = list(original(*args, **options))
        counts.append(sum(block.queries[1] * block.keys[1] for block in blocks))
        return blocks

    monkeypatch.setattr(kernels, "_blocks", counted)
    return counts


WINDOWS = [
    *((name, window) for name in ("short", "blocks") for window in (None, 1, 70)),
    ("long", None),
    ("long", 700),
]


@pytest.mark.parametrize(("name", "window"), WINDOWS)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_states_and_gradients_are_those_of_all_scores(dtype, name, causal, window):
    rows = rows_of(*ROWS[name])
    inputs, gradient = drawn(rows, dtype)
    actual = attend(rows, inputs, gradient, causal=causal, sliding_window=window)
    assert_as_torch(actual, rows, inputs, gradient, causal=causal, window=window)


@pytest.mark.parametrize("layout", [{"value_dim": 24}, {"across": True}], ids=str)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_other_layouts_and_factors(causal, layout):
    rows = rows_of(*ROWS["blocks"])
    inputs, gradient = drawn(rows, torch.float32, **layout)
    actual = attend(rows, inputs, gradient, causal=causal, scaling=0.3)
    assert_as_torch(actual, rows, inputs, gradient, causal=causal, scaling=0.3)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_gradients_of_any_layout(causal):
    rows = rows_of(*ROWS["blocks"])
    inputs, gradient = drawn(rows, torch.float32)
    across = gradient.mT.contiguous().mT
    actual = attend(rows, inputs, across, causal=causal)
    assert_as_torch(actual, rows, inputs, gradient, causal=causal)


def test_heads_may_share_keys():
    rows = rows_of(*ROWS["blocks"])
    (query, key, value), gradient = drawn(rows, torch.float32, heads=4)
    shared = [each[:, :2].detach().requires_grad_() for each in (key, value)]
    actual = attend(rows, [query, *shared], gradient, causal=True)
    repeated = [each.repeat_interleave(2, dim=1) for each in shared]
    both = []
    for dtype in (torch.float32, torch.float64):
        output, of_query, *of_shared = attend_whole(
            rows, [query, *repeated], gradient, dtype=dtype, causal=True
        )
        both.append([output, of_query, *(each.unflatten(1, (2, 2)).sum(2) for each in of_shared)])
    assert_as_exact(actual, *both)


@pytest.mark.parametrize(
    ("causal", "window", "expected"),
    [
        (False, None, 200**2 + 56**2),
        (True, None, 64 * (64 + 128 + 192) + 8 * 200 + 56**2),
        (True, 33, 64 * (64 + 96 + 96) + 8 * 40 + 56**2),
        (False, 33, 64 * (96 + 128 + 104) + 8 * 40 + 56**2),
    ],
)
def test_scores_of_other_documents_and_later_tokens_are_left_out(scores, causal, window, expected):
    rows = rows_of(256, [200, 56])
    inputs, gradient = drawn(rows, torch.float32)
    attend(rows, inputs, gradient, causal=causal, sliding_window=window)
    assert scores == [expected]


def test_rows_in_bf16_are_read_by_document_if_they_are_long(scores):
    for row_length in (256, 300):
        rows = rows_of(row_length, [200, 56])
        inputs, gradient = drawn(rows, torch.bfloat16)
        attend(rows, inputs, gradient, causal=False)
    assert scores == [200**2 + 56**2 + 44**2]


def test_rows_of_many_short_documents_are_read_as_a_whole(scores, monkeypatch):
    monkeypatch.setattr(kernels, "_SCORES_PER_DOCUMENT", 2000)
    for length in (8, 15, 16, 128):
        rows = rows_of(128, [length] * (128 // length))
        inputs, gradient = drawn(rows, torch.float32)
        attend(rows, inputs, gradient, causal=False)
    assert scores == [8 * 16**2, 128**2]


@pytest.mark.parametrize("options", [{"dropout": 0.5}, {"softcap": 5.0}], ids=str)
def test_dropped_and_capped_scores_are_computed_as_without(options, scores):
    rows = rows_of(*ROWS["blocks"])
    inputs, gradient = drawn(rows, torch.float32)
    outputs = []
    for are_on in (True, False):
        torch.manual_seed(0)
        outputs.append(attend(rows, inputs, gradient, causal=True, are_on=are_on, **options))
    for actual, expected in zip(*outputs, strict=True):
        assert torch.equal(actual, expected)
    assert not scores


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_long_documents_keep_no_weights(causal):
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(state):
        kept[state.untyped_storage().data_ptr()] = state.untyped_storage()
        return state

    rows = rows_of(2048, [2048])
    inputs, gradient = drawn(rows, torch.float32)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda state: state):
        attend(rows, inputs, gradient, causal=causal)
    num_heads, head_dim, most_keys = 2, 16, 256
    states = 4 * rows.input_ids.size * num_heads * head_dim * 4
    weights = rows.input_ids.size * num_heads * most_keys * 4
    assert sum(storage.nbytes() for storage in kept.values()) < states + weights / 4
