"""Attention on a CPU, one document at a time: no scores of other documents, or of later tokens.

torch's kernels compute all scores of a row and hide most of them by a mask. Here, queries and keys
of a document are multiplied by plain products, whose results fit in a core's cache. Where a mask
remains (in causal passes, and with sliding windows), a document is read in blocks of queries, each
with the keys that it may see. Weights are kept for the backward pass; for many keys that would take
too much memory, so torch's kernel reads such blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from biphasic.model.cpu.products import widens_bf16
from biphasic.model.shape import KEPT_KEYS

# Queries in a block. Blocks of 64 are the fastest in fp32; small products in bf16 are slow.
_FP32_BLOCK, _BF16_BLOCK = 64, 256
# A document costs some 40 microseconds, in which a row's kernel computes about so many scores.
_SCORES_PER_DOCUMENT = 2000


def reads_documents(shape: tuple[int, int], *, num_documents: int, dtype: torch.dtype) -> bool:
    """Return whether reading by document is faster than reading whole rows, (number, length)."""
    num_rows, row_length = shape
    if dtype == torch.bfloat16 and row_length <= KEPT_KEYS:
        return False
    return num_rows * row_length**2 >= _SCORES_PER_DOCUMENT * num_documents


def attend_by_document(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    *,
    causal: bool,
    window: int | None,
    scaling: float | None,
) -> Tensor:
    """Return [num_rows, row_length, num_heads, head_dim], from as many key heads as query heads."""
    # `cu_seqlens` and `window` are those of `packed_attention`.
    dtype = query.dtype
    if widens_bf16(query.device, dtype):
        query, key, value = query.float(), key.float(), value.float()
    blocks = tuple(_blocks(cu_seqlens, query, causal=causal, window=window))
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    return _ByDocument.apply(query, key, value, blocks, factor).to(dtype)


class _Block(NamedTuple):
    row: int
    queries: tuple[int, int]  # the first one, and their number
    keys: tuple[int, int]
    hidden: Tensor | None  # [num_queries, num_keys], 0 or -inf
    is_first_write: bool  # whether the backward pass, which is reversed, meets its keys first


def _blocks(
    cu_seqlens: Tensor, query: Tensor, *, causal: bool, window: int | None
) -> Iterator[_Block]:
    row_length = query.shape[2]
    size, band = row_length, None
    if causal or window is not None:
        size = _FP32_BLOCK if query.dtype == torch.float32 else _BF16_BLOCK
        band = _band(size, row_length, query.dtype, causal=causal, window=window)
    reach = row_length if window is None else window - 1
    for flat_start, flat_end in pairwise(cu_seqlens.tolist()):
        row, start = divmod(flat_start, row_length)
        end = flat_end - row * row_length
        for first in range(start, end, size):
            last = min(first + size, end)
            low, high = max(first - reach, start), last if causal else min(last + reach, end)
            hidden = None
            if band is not None:
                shift = row_length - first
                hidden = band[: last - first, shift + low : shift + high]
            is_first_write = window is None and high == end
            yield _Block(row, (first, last - first), (low, high - low), hidden, is_first_write)


@lru_cache(maxsize=16)  # row lengths of pairs of texts differ by step
def _band(
    size: int, row_length: int, dtype: torch.dtype, *, causal: bool, window: int | None
) -> Tensor:
    """Return 0 where query i sees the key `j - row_length` tokens after query 0, and else -inf."""
    distance = torch.arange(size + 2 * row_length) - row_length - torch.arange(size)[:, None]
    hidden = distance > 0 if causal else torch.zeros_like(distance, dtype=torch.bool)
    if window is not None:
        hidden |= distance.abs() >= window
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))


class _ByDocument(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - as autograd passes them
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        blocks: tuple[_Block, ...],
        factor: float,
    ) -> Tensor:
        output = _like(value)
        by_token = output.transpose(1, 2)
        has_kernel = _has_kernel(query, key, value)
        kept: list[Tensor] = []  # weights, or what torch's kernel keeps
        rows = [states.unbind() for states in (query, key, value, output)]
        for row, queries, keys, hidden, _ in blocks:
            read, *seen, written = (states[row] for states in rows)
            parts = read.narrow(1, *queries), *(states.narrow(1, *keys) for states in seen)
            if has_kernel and keys[1] > KEPT_KEYS:
                attended, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                    *(part[None] for part in parts), attn_mask=hidden, scale=factor
                )
                attended = attended[0]
                kept.append(sums)
            else:
                scores = _product(parts[0], parts[1].mT, factor, hidden)
                kept.append(torch.softmax(scores, -1, out=scores))
                attended = torch.bmm(scores, parts[2])
            written.narrow(1, *queries).copy_(attended)
        ctx.save_for_backward(query, key, value, output, *kept)
        ctx.blocks, ctx.factor = blocks, factor
        return by_token

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        *states, output = saved[:4]
        has_kernel = _has_kernel(*states)
        totals = tuple(map(_like, states))
        if not ctx.blocks[-1].is_first_write:  # as with all windows
            totals[1].zero_()
            totals[2].zero_()
        by_head = gradients[0].transpose(1, 2)
        rows = [each.unbind() for each in (*states, output, by_head, *totals)]
        for (row, queries, keys, hidden, is_first_write), weights in zip(
            reversed(ctx.blocks), reversed(saved[4:]), strict=True
        ):
            query, key, value, attended, of_attended, *of_row = (each[row] for each in rows)
            parts = query.narrow(1, *queries), key.narrow(1, *keys), value.narrow(1, *keys)
            of_attended = of_attended.narrow(1, *queries)
            if has_kernel and keys[1] > KEPT_KEYS:
                found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                    of_attended[None], *(part[None] for part in parts),
                    attended.narrow(1, *queries)[None], weights, 0.0, False,
                    attn_mask=hidden, scale=ctx.factor,
                )  # fmt: skip
                found = tuple(part[0] for part in found)
            else:
                found = _gradients(of_attended, parts, weights, ctx.factor)
            write = Tensor.copy_ if is_first_write else Tensor.add_
            for total, part, place, put in zip(
                of_row, found, (queries, keys, keys), (Tensor.copy_, write, write), strict=True
            ):
                put(total.narrow(1, *place), part)
        return *totals, None, None


def _gradients(
    gradient: Tensor, parts: tuple[Tensor, Tensor, Tensor], weights: Tensor, factor: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values, [num_heads, num_tokens, head_dim] each."""
    query, key, value = parts
    of_weights = torch.bmm(gradient, value.mT)
    of_scores = torch.ops.aten._softmax_backward_data(of_weights, weights, -1, weights.dtype)
    return (
        _product(of_scores, key, factor),
        _product(of_scores.mT, query, factor),
        torch.bmm(weights.mT, gradient),
    )


def _product(left: Tensor, right: Tensor, factor: float, added: Tensor | None = None) -> Tensor:
    """Return `factor * left @ right + added`, for each head."""
    if added is None:
        return torch.baddbmm(left.new_empty(()), left, right, beta=0, alpha=factor)
    return torch.baddbmm(added.expand(len(left), -1, -1), left, right, alpha=factor)


def _like(states: Tensor) -> Tensor:
    """Return an empty tensor whose heads lie side by side for each token."""
    by_token = states.transpose(1, 2)
    return torch.empty_like(by_token, memory_format=torch.contiguous_format).transpose(1, 2)


def _has_kernel(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether torch's kernel reads blocks of these states correctly, and fast."""
    states = (query, key, value)
    is_fit = query.shape == value.shape and all(each.stride(-1) == 1 for each in states)
    return is_fit and query.dtype == torch.float32
