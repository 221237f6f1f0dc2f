"""One vector for each text of packed rows: the mean, first or last of its final states."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Pooling = Literal["mean", "first", "last"]


def pooled(hidden: Tensor, starts: Tensor, cu_seqlens: Tensor, *, pooling: Pooling) -> Tensor:
    """Return a vector for each text, special tokens included: [num_texts, hidden_size], in fp32."""
    # `hidden` is [num_tokens, hidden_size]. `starts` are the texts' first positions, int64
    # [num_texts]; each ends at the next border in `cu_seqlens`.
    exact = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
    if pooling == "first":
        return exact[starts]
    ends = cu_seqlens.long()[torch.searchsorted(cu_seqlens.long(), starts, right=True)]
    if pooling == "last":
        return exact[ends - 1]
    # A product with a dense matrix has a fixed order of summation on every device; scattered
    # additions do not.
    places = torch.arange(len(hidden), device=hidden.device)
    is_inside = (places >= starts[:, None]) & (places < ends[:, None])  # (num_texts, num_tokens)
    return (is_inside.to(exact.dtype) / (ends - starts)[:, None]) @ exact
