"""One attention function for every model and objective: packed rows, causal or not.

transformers looks attention up by name; `register_attention` adds ours as `biphasic`. The model's
call passes the layout of a batch to each layer as keyword arguments:

- `cu_seqlens`: int32 [num_segments + 1], borders of the segments over the flattened rows;
- `max_seqlen`: length of the longest segment, an int;
- `causal`: whether a token attends only to those before it (CLM) or to its whole segment (MLM);
- `block_mask`: [num_rows, 1, row_length, row_length], 0 where attention is allowed and -inf
  elsewhere; for backends without variable-length kernels. It is built once per batch, not per
  layer.

Three backends compute the same function; device, precision and dropout determine which one is used:

- `varlen`: torch's variable-length kernel, on CUDA in half precision (all it supports);
- `dense`: explicit scores. Used on a CPU in bf16, where torch's fused kernel converts every tile to
  fp32 (9 rows of 256, 3 heads of 64, forward and backward on one core: 7 ms against 20 ms); on a
  CPU with attention dropout, where torch's random draws are slow (`kernels.py`); and on any device
  if a model caps its scores (Gemma 2), which neither kernel supports;
- `sdpa`: torch's fused kernel, in all other cases.

On a CPU, the last two compute hidden scores, too. Training reads documents one by one there
(`cpu/kernels.py`).

The rest of the model is unchanged transformers code. Hugging Face's own packing by `position_ids`
isolates documents for causal models but leaks for bidirectional ones, which would confound the
comparison of objectives; hence one function for both.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Set
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from biphasic.errors import ModelError
from biphasic.model.cpu.kernels import attend_by_document, reads_documents, uses_cpu_kernels
from biphasic.model.cpu.kernels import dropout as drop
from biphasic.model.cpu.products import widens_bf16

ATTENTION_NAME = "biphasic"


def register_attention() -> None:
    """Register `attn_implementation="biphasic"` with transformers. Idempotent."""
    AttentionInterface.register(ATTENTION_NAME, packed_attention)
    # Otherwise transformers would make a mask of its own, which knows no segments.
    AttentionMaskInterface.register(ATTENTION_NAME, _no_padding_mask)


def attention_arguments(
    cu_seqlens: Tensor,
    *,
    max_seqlen: int,
    shape: tuple[int, int],
    causal: bool,
    dtype: torch.dtype,
) -> dict[str, Any]:
    """Return the keyword arguments that describe a model's segments."""
    # `cu_seqlens` is int32 [num_segments + 1] on the model's device; the last entry is the number
    # of tokens, padding included (a token beyond it would yield NaN gradients). `shape` is
    # (num_rows, row_length), and `dtype` that of the activations.
    by_document = uses_cpu_kernels(cu_seqlens) and reads_documents(
        shape, num_documents=len(cu_seqlens) - 1, dtype=dtype
    )
    needs_mask = backend(cu_seqlens.device, dtype) != "varlen" and not by_document
    return {
        "cu_seqlens": cu_seqlens,
        "max_seqlen": max_seqlen,
        "causal": causal,
        "block_mask": block_mask(cu_seqlens, shape=shape, causal=causal, dtype=dtype)
        if needs_mask
        else None,
    }


def backend(
    device: torch.device, dtype: torch.dtype, *, drops: bool = False, caps: bool = False
) -> str:
    """Return the backend for a device and precision: `varlen`, `dense` or `sdpa`."""
    # `drops` is whether attention weights are dropped, `caps` whether scores are capped.
    if caps:
        return "dense"
    if device.type == "cuda" and dtype in {torch.bfloat16, torch.float16}:
        return "varlen"
    return "dense" if device.type == "cpu" and (dtype == torch.bfloat16 or drops) else "sdpa"


def block_mask(
    cu_seqlens: Tensor, *, shape: tuple[int, int], causal: bool, dtype: torch.dtype
) -> Tensor:
    """Return [num_rows, 1, row_length, row_length]: 0 where query i attends to key j, else -inf."""
    # `shape` is (num_rows, row_length). Nothing is read from the device.
    num_tokens = shape[0] * shape[1]
    # Ones at the starts, summed, number the segments. A loop over borders would read each of them
    # from the device.
    segment_starts = torch.zeros(num_tokens, dtype=torch.int32, device=cu_seqlens.device)
    segment_starts[cu_seqlens[:-1].long()] = 1
    segments = segment_starts.cumsum(0).view(shape)
    visible = segments[:, :, None] == segments[:, None, :]
    if causal:
        visible = visible.tril()
    return _additive(visible, dtype)[:, None]


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    zeros = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return zeros.masked_fill_(~visible, float("-inf"))


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    causal: bool | None = None,
    block_mask: Tensor | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Attend within segments.

    Args:
        module: The attention layer, for error messages.
        query: [num_rows, num_heads, row_length, head_dim].
        key: [num_rows, num_key_value_heads, row_length, head_dim].
        value: Same shape as `key`.
        attention_mask: Must be None: padding is a separate segment.
        scaling: Factor on the scores; `head_dim ** -0.5` when None.
        dropout: Probability of dropping an attention weight.
        sliding_window: A token attends to others less than this many positions away, as in
            transformers' flash-attention path (ModernBERT passes its half window plus one).
        softcap: Scores become `softcap * tanh(scores / softcap)` before anything is hidden.
        cu_seqlens: See the module docstring, also for the next three.
        max_seqlen: Length of the longest segment.
        causal: True for CLM.
        block_mask: For backends without variable-length kernels.
        unused: Arguments that transformers passes for other backends (`position_ids`, ...).

    Returns:
        [num_rows, row_length, num_heads, head_dim], and no weights.
    """
    if cu_seqlens is None or causal is None or max_seqlen is None:
        raise ModelError(
            f"{_name(module)} was called without cu_seqlens, max_seqlen and causal: its family's "
            "layers do not pass them on, so it cannot read packed rows (or the model was not "
            "called through biphasic.model.compute.forward)"
        )
    if attention_mask is not None:
        raise ModelError(
            f"{_name(module)}: its family always makes an attention_mask, which packed rows do not "
            "support; fine-tune it with `batching: padded`"
        )
    if unused.get("s_aux") is not None:
        raise ModelError(
            f"{_name(module)} has attention sinks, which packed attention does not support; "
            "fine-tune it with `batching: padded`"
        )
    is_ours = uses_cpu_kernels(query)
    # Reading by document neither caps scores nor drops weights, so `dense` reads with a mask.
    if block_mask is None and (softcap is not None or (is_ours and dropout)):
        block_mask = _mask_for(query, cu_seqlens, causal=causal)
    if block_mask is None and is_ours:
        key, value = (_repeat_heads(states, query.shape[1]) for states in (key, value))
        output = attend_by_document(
            query, key, value, cu_seqlens, causal=causal, scaling=scaling, window=sliding_window
        )
        return output, None
    if block_mask is None:
        if dropout:
            raise ModelError(
                f"{_name(module)} drops attention weights (dropout {dropout:g}), which "
                "torch's variable-length kernel lacks; fine-tune with `batching: padded`, or "
                "in fp32"
            )
        output = _varlen(
            query, key, value, cu_seqlens, max_seqlen,
            causal=causal, scaling=scaling, sliding_window=sliding_window,
        )  # fmt: skip
        return output, None
    if sliding_window is not None:
        positions = torch.arange(query.shape[2], device=query.device)
        near = (positions[:, None] - positions[None, :]).abs() < sliding_window
        block_mask = block_mask + _additive(near, query.dtype)
    key, value = (_repeat_heads(states, query.shape[1]) for states in (key, value))
    chosen = backend(query.device, query.dtype, drops=dropout > 0, caps=softcap is not None)
    if chosen == "dense":
        options = {"scaling": scaling, "dropout": dropout, "softcap": softcap}
        return _dense(query, key, value, block_mask, **options), None
    output = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=block_mask, dropout_p=dropout, scale=scaling
    )
    return output.transpose(1, 2), None


def _mask_for(query: Tensor, cu_seqlens: Tensor, *, causal: bool) -> Tensor:
    shape = query.shape[0], query.shape[2]
    return block_mask(cu_seqlens, shape=shape, causal=causal, dtype=query.dtype)


def _name(module: nn.Module) -> str:
    """Return the attention layer's name for error messages."""
    index, kind = getattr(module, "layer_idx", None), type(module).__name__.lstrip("_")
    return kind if index is None else f"layer {index} ({kind})"


def _dense(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    *,
    scaling: float | None,
    dropout: float,
    softcap: float | None = None,
) -> Tensor:
    num_rows, num_heads, row_length, head_dim = query.shape
    dtype = query.dtype
    if widens_bf16(query.device, dtype):
        query, key, value, mask = query.float(), key.float(), value.float(), mask.float()
    flat = (num_rows * num_heads, row_length)
    hidden = mask.expand(-1, num_heads, -1, -1).reshape(*flat, row_length)
    queries = query.reshape(*flat, head_dim)
    keys = key.reshape(*flat, head_dim).transpose(1, 2)
    factor = head_dim**-0.5 if scaling is None else scaling
    if softcap is None:
        scores = torch.baddbmm(hidden, queries, keys, alpha=factor)
    else:
        scores = (torch.bmm(queries, keys) * (factor / softcap)).tanh() * softcap + hidden
    # Hidden scores are -inf, so their weights are exactly 0, and so is leakage.
    weights = scores.softmax(-1)  # in fp32 within
    if dropout:
        weights = drop(weights, dropout)
    output = torch.bmm(weights, value.reshape(*flat, -1)).to(dtype)
    return output.view(num_rows, num_heads, row_length, -1).transpose(1, 2)


def _repeat_heads(states: Tensor, num_heads: int) -> Tensor:
    """Copy each key head for every query head that shares it."""
    groups = num_heads // states.shape[1]
    return states.repeat_interleave(groups, dim=1) if groups > 1 else states


def _varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    *,
    causal: bool,
    scaling: float | None,
    sliding_window: int | None,
) -> Tensor:
    """Attend with the variable-length kernel, on [tokens, heads, head_dim]."""
    # Without a GPU, tests check only the names of its options.
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - absent in CPU-only paths

    num_rows, num_heads, row_length, head_dim = query.shape
    accepted = _parameters(varlen_attn)
    options = varlen_options(
        accepted, causal=causal, scaling=scaling, sliding_window=sliding_window
    )
    if "enable_gqa" in accepted:
        options["enable_gqa"] = key.shape[1] != num_heads
    else:
        key, value = _repeat_heads(key, num_heads), _repeat_heads(value, num_heads)
    flat_query, flat_key, flat_value = (
        part.transpose(1, 2).reshape(-1, part.shape[1], head_dim) for part in (query, key, value)
    )
    borders = cu_seqlens, cu_seqlens, max_seqlen, max_seqlen
    output = varlen_attn(flat_query, flat_key, flat_value, *borders, **options)
    # A tuple only if auxiliary output is requested.
    return cast(Tensor, output).view(num_rows, row_length, num_heads, head_dim)


@cache
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def varlen_options(
    accepted: Set[str],
    *,
    causal: bool,
    scaling: float | None,
    sliding_window: int | None,
) -> dict[str, Any]:
    """Return causality, window and scale as options of the installed torch's `varlen_attn`."""
    # torch 2.13 expresses causality through `window_size`; earlier releases have `is_causal`.
    reach = -1 if sliding_window is None else sliding_window - 1
    options: dict[str, Any] = {}
    if "window_size" in accepted:
        # Reach to the left and to the right; -1 is no limit.
        options["window_size"] = (reach, 0 if causal else reach)
    elif sliding_window is not None:
        raise ModelError("sliding windows need torch 2.13 or newer on CUDA")
    elif "is_causal" in accepted:
        options["is_causal"] = causal
    else:
        raise ModelError("this torch's varlen_attn supports neither window_size nor is_causal")
    if scaling is not None:
        options["scale"] = scaling
    return options


def _no_padding_mask(*_: Any, attention_mask: Tensor | None = None, **__: Any) -> None:
    """Replace transformers' mask creation; refuse padding, which would be ignored."""
    # BioGPT makes a mask of ones if it gets none.
    if attention_mask is not None and not bool(attention_mask.all()):
        raise ModelError("packed rows support no attention_mask; padding is a separate segment")
